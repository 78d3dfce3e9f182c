package faults

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/testenv"
	"weir/tests/harness"
)

// restoreDrill makes a backup under load as docs/operations.md describes it, and restores it into
// another database and another Redis, as after the loss of both.
func restoreDrill(m *measurement) {
	r := newRig(m.T)
	streams := r.probing()
	c := streams[len(streams)-1].from
	status, _, _ := r.putLimit(c, r.nodes[0], 111_111)
	require.Equal(m.T, http.StatusOK, status)
	r.startTallies()
	l := r.load(streams...)
	l.seconds(3)

	folder := m.TempDir()
	began := time.Now()
	out, err := exec.Command("pg_dump", "--format=custom", "--file="+filepath.Join(folder, "weir.dump"), r.direct["WEIR_DATABASE_URL"]).CombinedOutput()
	require.NoError(m.T, err, "%s", out)
	out, err = exec.Command("redis-cli", "-u", r.direct["WEIR_REDIS_URL"], "--rdb", filepath.Join(folder, "dump.rdb")).CombinedOutput()
	require.NoError(m.T, err, "%s", out)
	m.note("The backup took %s.", round(time.Since(began)))
	status, _, _ = r.putLimit(c, r.nodes[0], 222_222) // after the backup
	require.Equal(m.T, http.StatusOK, status)
	l.seconds(1)
	h := l.stop()
	m.decided(h)
	before := make([]int, tallySubjects)
	for n := range before {
		before[n] = tallyLimit - int(r.ask("tally", n, 0).remaining)
	}
	for _, n := range r.nodes {
		n.Kill()
	}
	r.redis.Kill()

	began = time.Now()
	database := harness.NewDatabase(m.T)
	out, err = exec.Command("pg_restore", "--single-transaction", "--dbname="+database, filepath.Join(folder, "weir.dump")).CombinedOutput()
	require.NoError(m.T, err, "%s", out)
	harness.Exec(m.T, database, "UPDATE config_version SET epoch = gen_random_uuid()")
	counters := testenv.StartRedis(m.T, "dir "+folder, "dbfilename dump.rdb")
	settings := r.direct.With(harness.Settings{
		"WEIR_DATABASE_URL": database, "WEIR_REDIS_URL": counters.URL, "WEIR_HTTP_ADDR": "127.0.0.1:0", "WEIR_INTERNAL_ADDR": "127.0.0.1:0",
	})
	restored := time.Since(began)
	started := time.Now()
	i := harness.Start(m.T, settings).AwaitReady()
	m.within("ready with the restored data", time.Since(started), 5*time.Second)
	m.note("The restore took %s.", round(restored))

	var limits struct{ Limit int }
	status, body := c.do(http.MethodPost, i.URL()+"/v1/check", `{"subject":"peek","resource":"requests","cost":0}`)
	require.NoError(m.T, json.Unmarshal(body, &limits))
	m.holds("a key works", status == http.StatusOK)
	m.holds("the limit is that of the backup", limits.Limit == 111_111)
	later, lost := 0, 0
	for n := range before {
		var rec record
		rec.read(r.probe.try(http.MethodPost, i.URL()+"/v1/check", fmt.Sprintf(`{"subject":%q,"resource":"tally","cost":0}`, subjectName(n))))
		require.Empty(m.T, rec.failure)
		used := tallyLimit - int(rec.remaining)
		later += max(0, used-before[n])
		if used <= (n+1)*apart {
			lost++
		}
	}
	m.none("units that were not used before", later)
	m.none(fmt.Sprintf("lost counters of %d", tallySubjects), lost)
	size, err := admin(m.T, counters).DBSize(m.T.Context()).Result()
	require.NoError(m.T, err)
	m.none(fmt.Sprintf("keys without expiry, of %d", size), int(keysWithoutExpiry(m.T, counters)))
	stdout, _, code := harness.Run(m.T, settings, "audit", "verify", "--tenant", "probe")
	m.holds("the audit trail is intact", code == 0 && strings.Contains(stdout, "probe: intact"))
}
