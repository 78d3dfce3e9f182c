package dashboard

import (
	"net/http"
	"strings"
	"time"

	"weir/internal/recent"
)

// instancesView shows the state of the service.
type instancesView struct {
	Instances []instanceRow
	Silent    int // that are alive but did not answer
}

type instanceRow struct {
	Name, Version          string
	This                   bool
	Started                moment
	Up                     string // how long it has been running, in words
	Counters, CountersTone string // whether it reaches Redis
	Config, ConfigTone     string // whether it is up to date
	Checks, Half, Nearly   string // of the last minute; "": there were none
}

// configLate is the age from which a configuration is out of date: it is compared each second, and
// a running comparison is not a failed one.
const configLate = 2 * time.Second

// instances shows the state of each instance, and whether it reaches Redis and Postgres. With
// fragment=list it returns only the live part.
func (d *dashboard) instances(w http.ResponseWriter, r *http.Request, v *visit) error {
	list, known := d.Recent.Instances(r.Context())
	view := instancesView{Silent: max(0, known-len(list))}
	for i := range list {
		view.Instances = append(view.Instances, instanceRowOf(&list[i], v.now))
	}
	if r.URL.Query().Get("fragment") == "list" {
		return d.render(w, r, http.StatusOK, instancesTable(&view))
	}
	v.frame.Title = "Instances"
	return d.render(w, r, http.StatusOK, instancesPage(v.frame, &view))
}

func instanceRowOf(i *recent.Instance, now time.Time) instanceRow {
	row := instanceRow{
		Name: nameOr(i.Name, "unnamed"), Version: nameOr(i.Version, "unknown"), This: i.This,
		Started: moment{i.StartedAt}, Up: inWords(max(0, now.Sub(i.StartedAt))),
		Counters: "available", CountersTone: "good", Config: "up to date", ConfigTone: "good",
	}
	if !i.DegradedSince.IsZero() {
		row.Counters, row.CountersTone = "unavailable for "+inWords(max(now.Sub(i.DegradedSince), time.Second)), "bad"
		if i.Failure != "" {
			row.Counters += ": " + strings.ReplaceAll(i.Failure, "_", " ")
		}
	}
	switch {
	case i.ConfigAge < 0:
		row.Config, row.ConfigTone = "not loaded yet", "bad"
	case i.ConfigAge > configLate:
		row.Config, row.ConfigTone = inWords(i.ConfigAge)+" old", "bad"
	}
	if l := i.Latency; l.Checks > 0 {
		row.Checks, row.Half, row.Nearly = grouped(int64(l.Checks)), latencyText(l.P50), latencyText(l.P99)
	}
	return row
}
