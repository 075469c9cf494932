"""A trace: the input of a daemon in order, for a replay of the judge. Written by `record`, read by `replay`.

A file of JSON lines, gzipped (plain ones are read too):

    {"trace":1,"gpuwarden":"0.1.0"}                                      first line: format, and version of the writer
    {"began":BOOT_ID,"rules":{…},"memory":[…],"at":12.5,"wall":1.8e9}    a daemon starts; without memory, it restarts
    {"began":BOOT_ID,"life":"…","part":2,"passes":[…],…}                 one of several parts, each self-contained
    {"pass":"nvml","at":17.5,"took":0.01,"facts":{…},"worker":{…}}       one pass; `outcome` and `error` unless it observed
    {"events":[{"type":"XidEvent",…}],"at":18.1}                         host events that were delivered together
    {"errors":{"ledger":"…"},"at":19.0}                                  errors of the daemon, from now on
    {"ruled":{…},"at":19.5}                                              the configuration was reloaded: new rules
    {"acknowledged":"xid.95@gpu/…","by":"root","at":20.0}
    {"accepted":true,"at":21.0}                                          an operator accepted the present inventory

`at`: seconds since boot, to the microsecond; for a pass, its end. `wall` is present if the wall clock has moved against
it by a millisecond or more, and applies until the next one. Facts and worker reports are differences from the
collector's previous pass (`changes.py`), never from one before `began`. Telemetry is written once a minute, or every 15
s if a condition depends on it. A file may have several traces, each with a first line; that of a black box
(`features/black_box`) names its failure. Within one format, keys and kinds of lines may be added, and a reader skips
unknown ones. Any other change is a new format, which an older reader refuses.
"""
