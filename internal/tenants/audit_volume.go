package tenants

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"time"

	"weir/internal/tenants/db"
)

// A trail is kept for as long as its tenant exists, unless the operator decides otherwise. A tenant
// that changes hundreds of thousands of subjects back and forth would fill the database. So the
// bytes of a day are counted, and:
//
//   - beyond a quarter of what the tenant may write on a day, a large row has the number of its
//     fields, their bytes and a SHA-256 instead of the fields themselves
//   - beyond all of it, the tenant's changes are refused until the day ends; small ones, as people
//     make them, have a sixteenth more
//
// The answers that are kept for repeats of a request count, too: a change with a short row can have
// an answer of a megabyte.
//
// Each change that is made has all of its rows, whatever it takes. Changes of the service itself,
// of billing systems and of customers are counted, but not refused: they have bounds of their own.
// Migrations of plans have none, and wait for the next day (mayMigrate).
// And whatever happened before, a tenant can revoke, rotate and delete.
//
// The figures, with the default of 1 GiB: an import that changes 200 000 subjects writes about
// 100 MiB, so two of them a day are in the trail with all details, and eight or more are possible.

// DefaultAuditDay is how many bytes a tenant's changes may add to its trail in a day.
const DefaultAuditDay = 1 << 30

const (
	auditFullShare = 4 // up to a quarter of the bytes of a day, rows have everything
	// A change of up to auditFewRows rows may use 1/auditSmallShare more than others.
	auditSmallShare = 16
	auditFewRows    = 20
	// auditDigestOver is the size from which on a row has digests beyond that. The rows of a rule
	// are smaller, so the history of a rule stays complete.
	auditDigestOver = 1 << 10
	// auditRowBytes is what a row takes besides its texts, with its part of the indexes.
	auditRowBytes = 300
)

// trailFull is the reason of a TooOftenError.
const trailFull = "the changes of the tenant have added as much to its audit trail today, with the answers that are kept for repeats, as they may in a day"

// auditDay counts the bytes of a trail on a day.
type auditDay struct {
	now   time.Time
	most  int64
	bytes int64
}

// auditDayOf returns the count of now's day.
func auditDayOf(head *db.LockAuditHeadRow, most int64, now time.Time) auditDay {
	d := auditDay{now: now, most: most}
	today := dayOf(now)
	tomorrow := today.Time.AddDate(0, 0, 1) // of a server whose clock is ahead
	if day := head.Day.Time; day.Before(today.Time) || day.After(tomorrow) {
		head.Day = today
	} else {
		d.bytes = head.DayBytes
	}
	return d
}

// admit refuses rows of an actor beyond the bytes of the day.
func (d *auditDay) admit(a Actor, rows []auditRow) error {
	most := d.most
	if len(rows) <= auditFewRows {
		most += d.most / auditSmallShare
	}
	if d.bytes < most || a.kind != KeyActor && a.kind != MemberActor {
		return nil
	}
	for i := range rows {
		if action := rows[i].action; action != "revoke" && action != "rotate" && action != "delete" {
			return &TooOftenError{RetryAfter: untilNextDay(d.now), Why: trailFull}
		}
	}
	return nil
}

// add counts a row with the texts that all rows of its change have in common. If that is too much
// for complete rows, it replaces the fields of a large one.
func (d *auditDay) add(row *auditRow, common int) {
	full := len(row.before) + len(row.after)
	if full > auditDigestOver && d.bytes+int64(full) > d.most/auditFullShare {
		row.before, row.after = digestOf(row.before), digestOf(row.after)
	}
	d.bytes += int64(auditRowBytes + common + len(row.action) + len(row.kind) + len(row.target) + len(row.before) + len(row.after) + len(row.reason))
}

// digestOf returns what stands for the fields of a row that are too many bytes: their number, their
// bytes and the SHA-256 of the JSON. nil stays nil.
func digestOf(fields json.RawMessage) json.RawMessage {
	if fields == nil {
		return nil
	}
	var each auditFields
	_ = json.Unmarshal(fields, &each) // an object that this package wrote
	sum := sha256.Sum256(fields)
	return auditFields{
		"fields": json.RawMessage(strconv.Itoa(len(each))), "bytes": json.RawMessage(strconv.Itoa(len(fields))), "sha256": quoted(hex.EncodeToString(sum[:])),
	}.encode()
}

// HasDigests reports whether the row has digests instead of its fields.
func (e *AuditEntry) HasDigests() bool {
	for _, fields := range []json.RawMessage{e.Before, e.After} {
		var digest struct{ SHA256 string }
		if json.Unmarshal(fields, &digest) == nil && digest.SHA256 != "" {
			return true
		}
	}
	return false
}
