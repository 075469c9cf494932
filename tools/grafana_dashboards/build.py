"""Makes the JSON of a dashboard page, with the builders of grafana-foundation-sdk."""

from __future__ import annotations

from collections.abc import Callable
from string import ascii_uppercase
from typing import Any

from grafana_foundation_sdk.builders import common as c
from grafana_foundation_sdk.builders import dashboard as d
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.builders.stat import Panel as Stat
from grafana_foundation_sdk.builders.statetimeline import Panel as StateTimeline
from grafana_foundation_sdk.builders.table import Panel as Table
from grafana_foundation_sdk.builders.timeseries import Panel as TimeSeries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as cm
from grafana_foundation_sdk.models import dashboard as dm
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from grafana_dashboards.model import GREEN, RED, Column, Kind, Page, Panel, Query, Steps, Texts, Variable

TAG = "gpuwarden"
SOURCE = dm.DataSourceRef(type_val="prometheus", uid="${datasource}")
NODE_UID = "gpuwarden-node"
_TO_NODE = f"/d/{NODE_UID}?${{datasource:queryparam}}&${{cluster:queryparam}}&${{__url_time_range}}&var-node="
POINTS_MOST = 300
"""Of each line: what a screen shows, and what a query of thousands of nodes can bear."""


def document(page: Page) -> str:
    """Return the JSON that Grafana imports, with sorted keys, so that only a change of the page changes the file."""
    return JSONEncoder(indent=2, sort_keys=True).encode(dashboard(page)) + "\n"


def dashboard(page: Page) -> dm.Dashboard:
    built = (
        d.Dashboard(page.title)
        .uid(page.uid)
        .description(page.text)
        .tags([TAG])
        .timezone("browser")
        .tooltip(dm.DashboardCursorSync.CROSSHAIR)
        .time(page.since, "now")
        .refresh("30s")
        .link(d.DashboardLink("GPU nodes").type(dm.DashboardLinkType.DASHBOARDS).tags([TAG]).keep_time(keep_time=True)
              .include_vars(include_vars=True))
        .with_variable(d.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
    )  # fmt: skip
    for variable in page.variables:
        built.with_variable(_variable(variable))
    number = 0
    for row in page.rows:
        built.with_row(d.Row(row.title).id(number := number + 1))
        for panel in row.panels:
            built.with_panel(_panel(panel).id(number := number + 1))
    return built.build()


def _variable(variable: Variable) -> d.QueryVariable:
    sort = dm.VariableSort.NUMERICAL_ASC if variable.numbers else dm.VariableSort.ALPHABETICAL_ASC
    built = (
        d.QueryVariable(variable.name)
        .label(variable.label)
        .datasource(SOURCE)
        .query(variable.query)
        .refresh(dm.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(sort)
    )
    if variable.any_of:
        every = dm.VariableOption(selected=True, text="All", value="$__all")
        built = built.multi(multi=True).include_all(include_all=True).current(every)
    if variable.any_of and not variable.hidden:
        built = built.all_value(".*")  # a name for each of 8,000 nodes is longer than a query may be
    if variable.hidden:
        built = built.hide(dm.VariableHide.HIDE_VARIABLE)
    return built


def _panel(panel: Panel) -> Any:
    built = _KINDS[panel.kind](panel)
    built.title(panel.title).description(panel.text).datasource(SOURCE).span(panel.width).height(panel.height)
    instant = panel.kind in (Kind.STAT, Kind.TILES, Kind.TABLE)
    for letter, query in zip(ascii_uppercase, panel.queries, strict=False):
        built.with_target(_query(letter, query, instant=instant, table=panel.kind is Kind.TABLE))
    if panel.unit != "none":
        built.unit(panel.unit)
    if panel.none:
        built.no_value(panel.none)
    if panel.texts:
        built.mappings([_mapping(panel.texts)])
    if panel.low is not None:
        built.min(panel.low)
    if panel.high is not None:
        built.max(panel.high)
    if panel.to_node:
        built.data_links([_link("Open ${__field.labels.node}", "${__field.labels.node}")])
    return built


def _query(letter: str, query: Query, *, instant: bool, table: bool) -> Dataquery:
    built = Dataquery().ref_id(letter).datasource(SOURCE).expr(query.expr).legend_format(query.legend or "__auto")
    built = built.instant() if instant else built.range()
    return built.format(PromQueryFormat.TABLE if table else PromQueryFormat.TIME_SERIES)


def _stat(panel: Panel) -> Stat:
    single_query = len(panel.queries) == 1
    return (
        Stat()
        .reduce_options(c.ReduceDataOptions().calcs(["lastNotNull"]))
        .color_mode(cm.BigValueColorMode.BACKGROUND if single_query else cm.BigValueColorMode.VALUE)
        .graph_mode(cm.BigValueGraphMode.NONE)
        .text_mode(cm.BigValueTextMode.VALUE if single_query else cm.BigValueTextMode.VALUE_AND_NAME)
        .color_scheme(_by_threshold())
        .thresholds(_thresholds(panel.steps))
    )


def _tiles(panel: Panel) -> Stat:
    return _stat(panel).text_mode(cm.BigValueTextMode.NAME).wide_layout(wide_layout=False)


def _series(panel: Panel) -> TimeSeries:
    built = (
        TimeSeries()
        .max_data_points(POINTS_MOST)
        .line_width(1)
        .show_points(cm.VisibilityMode.NEVER)
        .span_nulls(span_nulls=False)
        .tooltip(c.VizTooltipOptions().mode(cm.TooltipDisplayMode.MULTI).sort(cm.SortOrder.DESCENDING))
        .legend(_legend())
    )
    if panel.limit:
        dashes = {"fill": "dash", "dash": [10, 10]}
        built.override_by_name(
            panel.limit,
            _properties(
                {"color": {"mode": "fixed", "fixedColor": RED}, "custom.lineStyle": dashes, "custom.lineWidth": 2}
            ),
        )
    return built


def _bars(panel: Panel) -> TimeSeries:
    return (
        _series(panel)
        .draw_style(cm.GraphDrawStyle.BARS)
        .fill_opacity(80)
        .stacking(c.StackingConfig().mode(cm.StackingMode.NORMAL).group("A"))
        .min(0)
    )


def _timeline(panel: Panel) -> StateTimeline:
    return (
        StateTimeline()
        .max_data_points(POINTS_MOST)
        .merge_values(merge_values=True)
        .show_value(cm.VisibilityMode.NEVER)
        .row_height(0.85)
        .line_width(0)
        .fill_opacity(70)
        .color_scheme(_by_threshold())
        .thresholds(_thresholds(panel.steps))
        .legend(_legend())
    )


def _table(panel: Panel) -> Table:
    built = Table().show_header(show_header=True).cell_height(cm.TableCellHeight.SM)
    built.align(cm.FieldTextAlignment.AUTO).inspect(inspect=False)  # defaults, which the SDK adds when it reads
    built.color_scheme(_by_threshold()).thresholds(_thresholds(panel.steps))
    if len(panel.queries) > 1:
        built.with_transformation(dm.DataTransformerConfig(id_val="merge", options={}))
    fields = [column.field for column in panel.columns]
    built.with_transformation(
        dm.DataTransformerConfig(id_val="filterFieldsByName", options={"include": {"names": fields}})
    )
    order = {
        "indexByName": {field: number for number, field in enumerate(fields)},
        "renameByName": {column.field: column.name for column in panel.columns},
        "excludeByName": {},
    }
    built.with_transformation(dm.DataTransformerConfig(id_val="organize", options=order))
    for column in panel.columns:
        built.override_by_name(column.name, _column(panel, column))
    if panel.sort:
        built.sort_by([c.TableSortByFieldState().display_name(panel.sort).desc(desc=not panel.upwards)])
    return built


def _column(panel: Panel, column: Column) -> list[dm.DynamicConfigValue]:
    properties: dict[str, object] = {}
    if column.unit:
        properties["unit"] = column.unit
    if column.width:
        properties["custom.width"] = column.width
    if column.texts:
        properties["mappings"] = [_mapping(column.texts)]
    if column.texts or (panel.steps and column.field.startswith("Value")):
        properties["custom.cellOptions"] = {"type": "color-text"}
    if column.node:
        properties["links"] = [_link("Open ${__value.text}", "${__value.text}").build()]
    return _properties(properties)


_KINDS: dict[Kind, Callable[[Panel], Any]] = {
    Kind.STAT: _stat, Kind.TILES: _tiles, Kind.SERIES: _series, Kind.BARS: _bars, Kind.TIMELINE: _timeline, Kind.TABLE: _table,
}  # fmt: skip


def _properties(properties: dict[str, object]) -> list[dm.DynamicConfigValue]:
    return [dm.DynamicConfigValue(id_val=name, value=value) for name, value in properties.items()]


def _mapping(texts: Texts) -> dm.ValueMap:
    options = {
        value: dm.ValueMappingResult(text=text, color=colour, index=number)
        for number, (value, (text, colour)) in enumerate(texts.items())
    }
    return dm.ValueMap(options=options)


def _link(title: str, node: str) -> d.DashboardLink:
    return d.DashboardLink(title).url(_TO_NODE + node)


def _thresholds(steps: Steps) -> d.ThresholdsConfig:
    first = dm.Threshold(value=None, color=GREEN)
    rest = [dm.Threshold(value=value, color=colour) for value, colour in steps]
    return d.ThresholdsConfig().mode(dm.ThresholdsMode.ABSOLUTE).steps([first, *rest])


def _by_threshold() -> d.FieldColor:
    return d.FieldColor().mode(dm.FieldColorModeId.THRESHOLDS)


def _legend() -> c.VizLegendOptions:
    return (
        c.VizLegendOptions()
        .display_mode(cm.LegendDisplayMode.LIST)
        .placement(cm.LegendPlacement.BOTTOM)
        .show_legend(show_legend=True)
    )
