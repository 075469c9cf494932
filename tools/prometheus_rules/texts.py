"""The texts of alerts, as templates of Prometheus. A finding's title and advice come from its daemon."""

from __future__ import annotations

NODE = "{{ or $labels.node $labels.instance }}"
WHERE = (
    "{{ if $labels.gpu }}GPU {{ $labels.gpu }} ({{ $labels.pci_bus_id }}) of "
    "{{ else if $labels.pci_bus_id }}the device {{ $labels.pci_bus_id }} of {{ end }}" + NODE
)
_QUERY = (
    '(query (printf "max by (detail, title, advice) (gpuwarden_finding_info'
    '{job=%q,instance=%q,check=%q,severity=%q,pci_bus_id=%q})" '
    "$labels.job $labels.instance $labels.check $labels.severity $labels.pci_bus_id))"
)
"""Not a join in the expression: an alert whose text changes must stay the same alert, and one without text must still fire."""
FINDING = (
    '{{ with sortByLabel "detail" ' + _QUERY + " }}"
    "{{ range $n, $one := . }}{{ if lt $n 3 }}{{ if $n }}; {{ end }}{{ .Labels.title }}"
    "{{ with .Labels.detail }} ({{ . }}){{ end }}. To do: {{ .Labels.advice }}{{ end }}{{ end }}"
    "{{ else }}{{ $labels.check }}. To do: see the runbook{{ end }}"
)
"""At most three findings of one check: of eighteen links that are down the page names three."""
CHECKS = (
    "{{ with query (printf \"topk(3, count by (check) (gpuwarden:finding:active{job=%q,severity='failure'}))\" $labels.job) }}"
    "Most frequent: {{ range $n, $one := . }}{{ if $n }}, {{ end }}{{ .Labels.check }} on {{ .Value }}{{ end }}. {{ end }}"
)
SINCE = "{{ humanizeDuration $value }}"
