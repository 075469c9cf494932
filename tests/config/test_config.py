"""Configuration: what is accepted, which source takes precedence, and how its faults are reported."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.base.addresses import Address
from gpuwarden.base.durations import format_duration, parse_duration
from gpuwarden.config.model import Config, ConfigError, Publish, load
from gpuwarden.config.render import as_toml
from gpuwarden.config.sources import Layer, Sources, nested
from gpuwarden.health.model import Advice, Severity
from gpuwarden.health.view import CheckRule, XidRule
from gpuwarden.publish.metrics.chosen import ALL
from gpuwarden_collectors.options import keys
from gpuwarden_collectors.plugin.options import SiteCheck

DURATION = 'a duration such as "500ms", "5s", "10m", "2h" or "28d"'
ADDRESS = 'host:port or [v6]:port, such as "0.0.0.0:9839"'


def configured(text: str, tmp_path: Path, variables: Mapping[str, str] | None = None) -> Config:
    file = tmp_path / "gpuwarden.toml"
    file.write_text(text)
    return load(Sources(file=file, environment=variables or {}))


def faults(text: str, tmp_path: Path, variables: Mapping[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        configured(text, tmp_path, variables)
    return [str(replace(fault, line=0)).removeprefix(f"{tmp_path}/") for fault in caught.value.faults]


def test_nothing_configured_is_a_sound_configuration() -> None:
    config = load(Sources(file=None))
    assert config == Config()
    assert (config.mode, str(config.publish.listen), config.inventory.expected_gpus) == (
        "observe",
        "0.0.0.0:9839",
        None,
    )


def test_each_key_takes_its_value(tmp_path: Path) -> None:
    config = configured(
        """
        mode = "enforce"
        node = "gpu-node01"
        paths = { sysfs = "/host/sys", proc = "/host/proc", kmsg = "/host/kmsg" }
        inventory.expected_gpus = 8
        [collectors]
        nvml = { enabled = false, interval = "1s", deadline = "2500ms", init_deadline = "2m", library = "libx.so" }
        pci = { enabled = false, interval = "20s", deadline = "5s" }
        kernel_log.enabled = false
        [publish]
        listen = "[::1]:0"
        hostname_label = "hostname"
        [control]
        group = "gpu-admins"
        [log]
        level = "debug"
        """,
        tmp_path,
    )
    nvml = config.collectors.nvml
    assert (nvml.enabled, nvml.interval, nvml.deadline, nvml.init_deadline, nvml.library) == (
        False,
        1,
        2.5,
        120,
        "libx.so",
    )
    assert (config.mode, config.node, config.inventory.expected_gpus) == ("enforce", "gpu-node01", 8)
    assert config.paths.kmsg == Path("/host/kmsg")
    assert config.publish == Publish(Address("::1", 0), hostname_label="hostname")
    assert (config.collectors.pci.interval, config.collectors.kernel_log.enabled) == (20, False)


def test_a_later_source_overrides_key_by_key(tmp_path: Path) -> None:
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "gpuwarden.toml").write_text('mode = "enforce"\nnode = "a"\n[collectors.nvml]\ninterval = "1s"\n')
    (tmp_path / "conf.d/20-late.toml").write_text('[collectors.nvml]\ndeadline = "7s"\n')
    (tmp_path / "conf.d/10-early.toml").write_text('node = "b"\n[collectors.nvml]\ndeadline = "6s"\n')
    (tmp_path / "conf.d/.30-hidden.toml").write_text("nonsense")
    (tmp_path / "conf.d/40-no-config.toml.bak").write_text("nonsense")
    variables = {"GPUWARDEN_COLLECTORS__NVML__INIT_DEADLINE": "50s", "GPUWARDEN_LOG__LEVEL": "error"}
    sources = Sources(
        file=tmp_path / "gpuwarden.toml",
        environment=variables,
        overrides=(Layer("--level", nested(["log", "level"], "debug")),),
        defaults=(Layer("--simulate", nested(["node"], "lowest")),),
    )
    config = load(sources)
    origins = config.origins or {}
    nvml = config.collectors.nvml
    assert (config.mode, config.node, config.log.level) == ("enforce", "b", "debug")
    assert (nvml.interval, nvml.deadline, nvml.init_deadline) == (1, 7, 50)
    assert origins["node",] == str(tmp_path / "conf.d/10-early.toml")
    assert origins["collectors", "nvml", "deadline"] == str(tmp_path / "conf.d/20-late.toml")
    assert origins["collectors", "nvml", "init_deadline"] == "GPUWARDEN_COLLECTORS__NVML__INIT_DEADLINE"
    assert origins["log", "level"] == "--level"


def test_a_file_may_begin_with_the_mark_of_editors_on_windows(tmp_path: Path) -> None:
    file = tmp_path / "gpuwarden.toml"
    file.write_bytes(b'\xef\xbb\xbfnode = "n1"\r\nmode = "enforce"\r\n')
    config = load(Sources(file=file, required=True))
    assert (config.node, config.mode) == ("n1", "enforce")
    file.write_bytes(b'\xef\xbb\xbfmode = "enforc"\r\n')
    with pytest.raises(ConfigError, match=r"found 'enforc'.*\(at line 1\)"):
        load(Sources(file=file, required=True))


def test_all_faults_of_all_sources_are_reported_together(tmp_path: Path) -> None:
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d/a.toml").write_text("[collectors.pci\n")
    (tmp_path / "conf.d/b.toml").write_bytes(b'node = "n1"\n\nmode = "\xff"\n')
    text = """
        mode = "enforc"
        [collectors.nvml]
        intervall = "5s"
        interval = 5
        deadline = "2m"
        [publish]
        listen = 9839
        [weather]
        node = "n1"
    """
    assert faults(text, tmp_path, {"GPUWARDEN_NODE": "17", "GPUWARDEN_LOG__LEVEL": "loud"}) == [
        "conf.d/a.toml: is not valid TOML: Expected ']' at the end of a table declaration (at line 1, column 16)",
        "conf.d/b.toml: expected UTF-8 text, found byte 0xff (at line 3)",
        "gpuwarden.toml: mode: expected one of observe, enforce, found 'enforc'; did you mean 'enforce'?",
        "GPUWARDEN_NODE: node: expected text, found 17 (a whole number): put it in quotes",
        f"gpuwarden.toml: collectors.nvml.interval: expected {DURATION}, found 5 (a whole number): write it in quotes, as shown",
        "gpuwarden.toml: collectors.nvml.intervall: unknown key; did you mean 'interval'?",
        f"gpuwarden.toml: publish.listen: expected {ADDRESS}, found 9839 (a whole number): write it in quotes, as shown",
        "GPUWARDEN_LOG__LEVEL: log.level: expected one of debug, info, warning, error, found 'loud'",
        f"gpuwarden.toml: weather: unknown key; known here are {', '.join(key.name for key in keys(Config))}",
        "gpuwarden.toml: collectors.nvml.deadline: expected 100ms to 1m, found 2m: a driver that hangs is reported after two missed deadlines",
        "gpuwarden.toml: collectors.nvml.deadline: expected init_deadline to be no shorter than deadline, found 1m beside 2m: the first pass takes longer",
    ]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("collectors = 3", "collectors: expected a table, found 3 (a whole number)"),
        ('collectors.nvml = "x"', "collectors.nvml: expected a table, found 'x'"),
        ("collectors.nvml.enabled = 1", "collectors.nvml.enabled: expected true or false, found 1 (a whole number)"),
        ("inventory.expected_gpus = true", "inventory.expected_gpus: expected a whole number, found true (true or false)"),
        ('inventory.expected_gpus = "8"', "inventory.expected_gpus: expected a whole number, found '8'"),
        ("inventory.expected_gpus = -1", "inventory.expected_gpus: expected 0 to 256, found -1"),
        ("node = 2026-01-31", "node: expected text, found 2026-01-31 (a date or time): put it in quotes"),
        ("node = ''", "node: expected a host's name of 1 to 253 characters, found ''"),
        ("node = 'a b'", "node: expected a host's name of 1 to 253 characters, found 'a b'"),
        ("control.group = []", "control.group: expected text, found a list"),
        ('paths.sysfs = "sys"', "paths.sysfs: expected an absolute path, found 'sys'"),
        ('paths.sysfs = "/s\\u0000"', "paths.sysfs: expected an absolute path, found '/s\\x00'"),
        ("collectors.nvml.simulate = 8", "collectors.nvml.simulate: unknown key; known here are enabled, interval, deadline, init_deadline, library, gpm"),
        ('collectors.nvml.interval = "50ms"', "collectors.nvml.interval: expected 100ms to 30s, found 50ms: a missing GPU must be detected within 30s"),
        ('collectors.nvml.init_deadline = "9s"', "collectors.nvml.init_deadline: expected init_deadline to be no shorter than deadline, found 9s beside 10s: the first pass takes longer"),
        ('run.dir = "/' + "r" * 95 + '"', f"run.dir: expected a path that leaves /{'r' * 95}/control.sock at most 107 bytes, found 109: the name of a Unix socket cannot be longer"),
    ],
)  # fmt: skip
def test_a_fault_names_the_expected_and_the_found_value(text: str, fault: str, tmp_path: Path) -> None:
    assert faults(text, tmp_path) == [f"gpuwarden.toml: {fault}"]


@pytest.mark.parametrize(
    "listen", ["9839", ":9839", "host:", "host:70000", "::1:9839", "[::1]", "[host]:1", "a b:1", "h:1 "]
)
def test_an_address_without_host_or_port_is_a_fault(listen: str, tmp_path: Path) -> None:
    (fault,) = faults(f'publish.listen = "{listen}"', tmp_path)
    assert fault.endswith(f"found {listen!r}")


def test_a_file_that_was_named_must_exist_and_one_that_was_not_need_not(tmp_path: Path) -> None:
    missing = tmp_path / "missing.toml"
    assert load(Sources(file=missing)) == Config()
    with pytest.raises(ConfigError, match=r"missing\.toml: does not exist$"):
        load(Sources(file=missing, required=True))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"x = " + b"[" * 100_000, "nested too deeply"),
        (b"#" * (2 << 20), "expected at most 1048576 bytes"),
        (b"a" + b".a" * 300 + b" = 1", "a: unknown key"),
        (b"mode = [", "at line 1, the end of the file"),
        (b"\x00", "is not valid TOML"),
        (b"inventory.expected_gpus = " + b"9" * 5000, "is not valid TOML: Exceeds the limit"),
        (b"inventory.expected_gpus = 0x" + b"f" * 5000, "expected 0 to 256, found a huge number"),
        (b"node = 0x" + b"f" * 5000, "node: "),
        (b"'\\n' = 1", 'gpuwarden.toml: "\\n": unknown key'),
        (b'"\\n" = 1', 'gpuwarden.toml: "\\n": unknown key'),
    ],
)
def test_a_file_that_is_no_configuration_is_one_fault(content: bytes, message: str, tmp_path: Path) -> None:
    file = tmp_path / "gpuwarden.toml"
    file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load(Sources(file=file))
    (fault,) = caught.value.faults
    assert message in str(fault)


def test_a_folder_in_place_of_a_file_and_a_file_in_place_of_the_folder_are_faults(tmp_path: Path) -> None:
    (tmp_path / "gpuwarden.toml").mkdir()
    (tmp_path / "conf.d").touch()
    with pytest.raises(ConfigError) as caught:
        load(Sources(file=tmp_path / "gpuwarden.toml"))
    assert [str(replace(fault, line=0)) for fault in caught.value.faults] == [
        f"{tmp_path}/gpuwarden.toml: cannot be read: Is a directory",
        f"{tmp_path}/conf.d: cannot be read: Not a directory",
    ]


@pytest.mark.parametrize(
    ("name", "value", "path", "expected"),
    [
        ("GPUWARDEN_NODE", "n1", "node", "n1"),
        ("GPUWARDEN_NODE", '"17"', "node", "17"),
        ("GPUWARDEN_INVENTORY__EXPECTED_GPUS", "8", "inventory.expected_gpus", 8),
        ("GPUWARDEN_COLLECTORS__PCI__ENABLED", "false", "collectors.pci.enabled", False),
        ("GPUWARDEN_COLLECTORS__PCI", '{ interval = "3s" }', "collectors.pci.interval", 3.0),
        ("GPUWARDEN_PUBLISH__LISTEN", "127.0.0.1:1", "publish.listen", Address("127.0.0.1", 1)),
        ("GPUWARDEN_RUN__DIR", "/r", "run.dir", Path("/r")),
        ("GPUWARDEN_RUN_DIR", "/r", "run.dir", Path("/r")),
        ("GPUWARDEN_CONTROL__GROUP", "1\nmode = 2", "control.group", "1\nmode = 2"),
        ("GPUWARDEN_TEST_HOST", "disposable", "mode", "observe"),
        ("GPUWARDEN_SERVICE_PORT_METRICS", "9839", "mode", "observe"),
        ("GPUWARDEN_PORT_9839_TCP", "tcp://10.0.0.1:9839", "mode", "observe"),
        ("GPUWARDEN_SIGNAL", "USR1", "mode", "observe"),
        ("GPUWARDEN_AFTER_SAVE", "park", "mode", "observe"),
        ("GPUWARDEN_STALL", "ignore", "mode", "observe"),
        ("GPUWARDEN_VERB", "exclude", "mode", "observe"),
        ("PATH", "/bin", "mode", "observe"),
    ],
)
def test_a_variable_sets_a_key(name: str, value: str, path: str, expected: object) -> None:
    setting: Any = load(Sources(file=None, environment={name: value}))
    for word in path.split("."):
        setting = getattr(setting, word)
    assert setting == expected


@pytest.mark.parametrize(
    "name", ["GPUWARDEN_MOED", "GPUWARDEN_", "GPUWARDEN_LOG__", "GPUWARDEN_LOG____LEVEL", "GPUWARDEN_NODES"]
)
def test_a_variable_that_means_no_key_is_a_fault_with_its_name(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name}: .*unknown key"):
        load(Sources(file=None, environment={name: "x"}))


WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
SECONDS = st.integers(100, 30_000).map(lambda milliseconds: milliseconds / 1000)


@pytest.mark.slow
@given(word=WORDS, interval=SECONDS, enabled=st.booleans(), count=st.none() | st.integers(0, 256))
def test_what_is_shown_can_be_read_back(
    word: str, interval: float, enabled: bool, count: int | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    start = Config()
    nvml = replace(start.collectors.nvml, interval=interval, enabled=enabled, library=word)
    config = replace(
        start,
        collectors=replace(start.collectors, nvml=nvml),
        inventory=replace(start.inventory, expected_gpus=count),
        control=replace(start.control, group=word),
        plugins={"nhc": SiteCheck(command=("/usr/sbin/nhc", word.replace("\0", "")), interval=max(1.0, interval))},
        checks={"thermal_limit": CheckRule(rise=interval, shadow=enabled, severity=Severity.WARNING)},
        xids={"79": XidRule(severity="warning", advice=Advice.REBOOT)},
    )
    file = tmp_path_factory.mktemp("shown") / "gpuwarden.toml"
    file.write_text(as_toml(config, {("node",): f"a file\nwith a {word} name"}))
    assert load(Sources(file=file)) == config


def test_the_source_of_each_value_is_shown_beside_it() -> None:
    config = load(Sources(file=None, environment={"GPUWARDEN_LOG__LEVEL": "debug"}))
    lines = [line.split() for line in as_toml(config, config.origins or {}).splitlines()]
    assert ["level", "=", '"debug"', "#", "GPUWARDEN_LOG__LEVEL"] in lines
    assert ["interval", "=", '"5s"', "#", "default"] in lines
    assert ["#", "expected_gpus", "is", "not", "set", "#", "default"] in lines


def test_single_conditions_and_xids_can_be_judged_otherwise(tmp_path: Path) -> None:
    config = configured('[checks.thermal_limit]\nshadow = true\nrise = "5m"\n[xids.79]\nseverity = "record"', tmp_path)
    assert config.checks == {"thermal_limit": CheckRule(shadow=True, rise=300.0)}
    assert config.xids == {"79": XidRule(severity="record")}


def test_all_faults_in_the_rules_of_a_site_are_reported_together(tmp_path: Path) -> None:
    text = """
        [checks.thermal_limitt]
        shadow = true
        [checks.thermal_limit]
        rise = "30d"
        severity = "bad"
        [xids.79]
        severity = "warn"
        [xids."7x"]
        severity = "warning"
        [plugins.nhc]
        command = ["/usr/sbin/nhc", 3]
    """
    assert faults(text, tmp_path) == [
        "gpuwarden.toml: plugins.nhc.command: item 1: expected text, found 3 (a whole number): put it in quotes",
        "gpuwarden.toml: checks.thermal_limit.severity: expected one of warning, failure, found 'bad'",
        "gpuwarden.toml: xids.79.severity: expected one of record, warning, failure, found 'warn'; did you mean 'warning'?",
        "gpuwarden.toml: checks.thermal_limit.rise: expected 0s to 7d, found 30d",
        "gpuwarden.toml: checks.thermal_limitt: is no condition; did you mean 'thermal_limit'?",
        "gpuwarden.toml: xids.7x: expected the number of an xid, such as xids.79",
    ]


def series(value: str, folder: Path, more: str = "") -> tuple[str, ...] | list[str]:
    """Return what `publish.series` becomes, or the faults."""
    file = folder / "gpuwarden.toml"
    file.write_text(f"[publish]\nseries = {value}\n{more}")
    try:
        return load(Sources(file=file), series=ALL).publish.series
    except ConfigError as error:
        return [f"{fault.key}: {fault.message}" for fault in error.faults]


def test_series_are_a_set_or_a_list_of_names(tmp_path: Path) -> None:
    assert series('"full"', tmp_path) == ("full",)
    assert series('["default", "DCGM_FI_DEV_PSTATE"]', tmp_path) == ("default", "DCGM_FI_DEV_PSTATE")
    assert Config().publish.series == ("default",)


def test_a_name_that_no_metric_has_is_a_fault_with_a_suggestion(tmp_path: Path) -> None:
    assert series('["default", "DCGM_FI_DEV_PSTAT", "gpuwarden_findings"]', tmp_path) == [
        "publish.series: 'DCGM_FI_DEV_PSTAT' is not a metric; did you mean 'DCGM_FI_DEV_PSTATE'?",
        "publish.series: 'gpuwarden_findings' is not a metric; did you mean 'gpuwarden_finding'?",
    ]
    assert series('"ful"', tmp_path) == ["publish.series: 'ful' is not a metric; did you mean 'full'?"]
    assert series("[]", tmp_path) == [
        'publish.series: expected "default", "full" or names of metrics, found an empty list'
    ]
    assert series("[8]", tmp_path) == ["publish.series: expected text, found 8 (a whole number): put it in quotes"]


def test_the_breaker_needs_the_series_by_which_it_counts(tmp_path: Path) -> None:
    breaker = '[breaker]\nprometheus = "http://127.0.0.1:9090"\n'
    assert series('["gpuwarden_node_info", "gpuwarden_excluded"]', tmp_path, breaker) == [
        "publish.series: lacks gpuwarden_machine_info, gpuwarden_excluded_since_timestamp_seconds, by which the breaker counts the fleet (breaker.prometheus)"
    ]
    assert series('["default", "gpuwarden_lemon"]', tmp_path, breaker) == ("default", "gpuwarden_lemon")
    assert series('["gpuwarden_lemon"]', tmp_path) == ("gpuwarden_lemon",)


KEYS = (
    st.sampled_from(
        [
            "mode",
            "node",
            "collectors",
            "nvml",
            "pci",
            "enabled",
            "interval",
            "deadline",
            "library",
            "simulate",
            "run",
            "dir",
            "listen",
            "publish",
        ]
    )
    | WORDS
)
VALUES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.dates() | WORDS | st.lists(st.integers(), max_size=2)
)


@pytest.mark.slow
@given(
    tree=st.dictionaries(KEYS, st.recursive(VALUES, lambda inner: st.dictionaries(KEYS, inner, max_size=4)), max_size=4)
)
def test_whatever_is_configured_is_a_configuration_or_faults_that_fit_on_lines(tree: dict[str, Any]) -> None:
    messages = ["anything: is sound"]
    try:
        load(Sources(file=None, overrides=(Layer("anything", tree),)))
    except ConfigError as error:
        messages = [str(replace(fault, line=0)) for fault in error.faults]
    assert messages
    assert all(fault.startswith("anything: ") and fault.isprintable() for fault in messages)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("5s", 5), ("1.5s", 1.5), ("10m", 600), ("2h", 7200), ("28d", 2_419_200), ("0s", 0), ("3 s", 3)],
)
def test_a_duration_is_a_number_with_a_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "5", "s", "-5s", "5S", "5 sec", "1h30m", "1e3s", "5s\n", "\u0665s", "9999999999999s", "infs"]
)
def test_anything_else_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="expected a duration"):
        parse_duration(text)


@given(st.integers(0, 10**12).map(lambda milliseconds: milliseconds / 1000))
def test_a_duration_reads_back_as_it_is_written(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == seconds


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('[xids."3.1"]\nseverity = "record"\n', 'xids."3.1"'),
        ('[checks."a.b"]\nshadow = true\n', 'checks."a.b"'),
        ('[plugins."my check"]\ncommand = 5\n', 'plugins."my check".command'),
    ],
)
def test_a_fault_in_a_quoted_key_names_its_file_and_the_key_as_it_is_written(
    tmp_path: Path, text: str, key: str
) -> None:
    assert next(fault.split(": ")[:2] for fault in faults(text, tmp_path)) == ["gpuwarden.toml", key]


@pytest.mark.parametrize("where", ["gpuwarden.toml", "conf.d/site.toml"])
def test_a_pipe_in_the_place_of_a_file_is_a_fault_and_is_not_waited_for(tmp_path: Path, where: str) -> None:
    (tmp_path / "conf.d").mkdir()
    os.mkfifo(tmp_path / where)
    if where != "gpuwarden.toml":
        (tmp_path / "gpuwarden.toml").touch()
    with pytest.raises(ConfigError, match=f"{where}: cannot be read: not a regular file"):
        load(Sources(file=tmp_path / "gpuwarden.toml", required=True))


# --- in a pod

POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "NODE_NAME": "gpu-7"}


@pytest.mark.parametrize(
    ("variables", "node"),
    [
        (POD, "gpu-7"),
        (POD | {"GPUWARDEN_NODE": "named"}, "named"),
        (POD | {"NODE_NAME": ""}, os.uname().nodename),
        ({"NODE_NAME": "gpu-7"}, os.uname().nodename),
    ],
)
def test_in_a_pod_the_node_is_called_what_the_manifest_says(variables: dict[str, str], node: str) -> None:
    assert load(Sources(file=None, environment=variables)).node == node


def test_a_file_names_the_node_before_the_manifest_does(tmp_path: Path) -> None:
    assert configured('node = "of-the-file"', tmp_path, POD).node == "of-the-file"


def test_a_name_of_the_manifest_that_is_none_is_a_fault_of_the_manifest() -> None:
    with pytest.raises(ConfigError, match="NODE_NAME: node: expected a host's name"):
        load(Sources(file=None, environment=POD | {"NODE_NAME": "not a name"}))


# --- paths that are tried in order


@pytest.mark.parametrize(
    ("written", "kept"), [('"/a/x.so"', "/a/x.so"), ('["/a/x.so", "/b/y.so"]', "/a/x.so:/b/y.so"), ("[]", "")]
)
def test_a_library_is_one_path_or_several(written: str, kept: str, tmp_path: Path) -> None:
    config = configured(f"collectors.nvml.library = {written}", tmp_path)
    assert config.collectors.nvml.library == kept
    again = tmp_path / "again.toml"
    again.write_text(as_toml(config, {}))
    assert load(Sources(file=again)).collectors.nvml.library == kept


@pytest.mark.parametrize("written", ["5", "[5]", '["/a:/b"]', '[""]', '["/a", ["/b"]]'])
def test_what_is_no_list_of_paths_is_a_fault_of_its_key(written: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"collectors\.nvml\.library: (item \d: )?expected"):
        configured(f"collectors.nvml.library = {written}", tmp_path)


def test_the_root_of_the_host_is_not_that_of_this_process(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"paths\.host: expected the folder where a pod has the host's root"):
        configured('paths.host = "/"', tmp_path)
    assert configured('paths.host = "/host"', tmp_path).paths.host == Path("/host")
