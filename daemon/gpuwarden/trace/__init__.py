"""A trace: what a daemon saw, in order, so that it can be judged again. Written by `record`, read by `replay`.

A file of JSON lines, gzipped (plain ones are read too):

    {"trace":1,"gpuwarden":"0.1.0"}                                      the first line: format, and who wrote it
    {"began":BOOT_ID,"rules":{…},"memory":[…],"at":12.5,"wall":1.8e9}    a daemon starts; without memory, it restarts
    {"began":BOOT_ID,"life":"…","part":2,"passes":[…],…}                 one of several parts, each with all that it needs of those before
    {"pass":"nvml","at":17.5,"took":0.01,"facts":{…},"worker":{…}}       one pass; `outcome` and `error` unless it observed
    {"events":[{"type":"XidEvent",…}],"at":18.1}                         host events, as they were handed over together
    {"errors":{"ledger":"…"},"at":19.0}                                  what the daemon itself cannot do, from now on
    {"ruled":{…},"at":19.5}                                              the configuration was read again: these rules from now on
    {"acknowledged":"xid.95@gpu/…","by":"root","at":20.0}
    {"accepted":true,"at":21.0}                                          an operator accepted the inventory as it was

`at` is seconds since boot, to the microsecond, and of a pass its end. `wall` is given where the wall clock has moved against
it by a millisecond, and holds until the next. Facts and worker reports are differences to the pass before of the same
collector (`changes.py`); none reaches back beyond `began`. Telemetry, on which no condition depends, is written once a
minute. Traces may follow one another in one file: a first line may come again, and that of a black box
(`features/black_box`) says which failure it was frozen for. Within one format keys and kinds of lines may be added, and a reader passes over those it does not know; anything
else is a new format, which an older reader refuses.
"""
