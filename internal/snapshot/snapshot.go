// Package snapshot keeps a copy of the configuration in a file, so that an instance can start while
// Postgres is unavailable.
//
// A Writer writes the file once a minute if something has changed: the keys of each active tenant
// (their hashes), its policy and its registered subjects, as they were read from Postgres. Tenants
// whose versions are those in the present file are copied from it. The operator's tenant comes
// first, then those whose keys were used last, and then those that need more than a quarter of the
// file, so that no tenant takes the space of all others if not all of them fit. A tenant that
// changes while it is read is read again. If it changes at each attempt, its parts in the file are
// of different instants. A tenant that cannot be read keeps its part of the present file, with its
// present keys, until that is as old as a file may be, and is then left out.
//
// Open reads a file from its beginning to its end and refuses one that is damaged, too old,
// readable by others, or of another version of the program. A Source then answers for Postgres,
// until Postgres does.
//
// The file is text, one JSON object in each line: a header; for each tenant a line with its
// versions, one for each key, one for the policy and one for each subject; and the SHA-256 of all
// that in the last line. For example, with one tenant that has one key and one registered subject:
//
//	{"format":"weir configuration","shape":"5f0c...","taken_at":"2026-05-04T10:00:00Z","sealed":"AQID..."}
//	{"tenant":{"id":"0197...","policy":7,"subjects":3,"keys":2}}
//	{"key":{"Hash":"q83v...","Scopes":["check"], ...}}
//	{"policy":{"Slug":"acme","Version":7,"Rules":[...], ...}}
//	{"subject":{"Subject":"ada","Plan":"pro", ...}}
//	{"sha256":"9f86..."}
//
// The only secrets in it, those of the deployment, are encrypted with WEIR_ENCRYPTION_KEY.
package snapshot

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"reflect"
	"time"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/tenants"
)

const (
	formatName = "weir configuration"
	// place is where the secrets are stored, for their encryption.
	place = "configuration snapshot"
)

// Deployment has the values that all instances of a deployment share.
type Deployment struct {
	Secrets  tenants.Secrets
	Platform limit.TenantID // the operator's tenant
}

// header is the first line.
type header struct {
	Format  string    `json:"format"`
	Shape   string    `json:"shape"`
	TakenAt time.Time `json:"taken_at"` // when the first tenant was read
	Sealed  []byte    `json:"sealed"`   // the Deployment, encrypted
}

// head begins the lines of a tenant.
type head struct {
	ID       limit.TenantID `json:"id"`
	Policy   int64          `json:"policy"` // versions
	Subjects int64          `json:"subjects"`
	Keys     int64          `json:"keys"`
}

// line is any line between the first and the last one. Exactly one field is set.
type line struct {
	Tenant  *head              `json:"tenant,omitempty"`
	Key     *tenants.StoredKey `json:"key,omitempty"`
	Policy  *check.PolicyData  `json:"policy,omitempty"`
	Subject *check.SubjectData `json:"subject,omitempty"`
}

// trailer is the last line.
type trailer struct {
	SHA256 string `json:"sha256"`
}

// shape identifies what the lines contain. A file of a program with other fields is not used: a
// restriction that one of the two does not know could be lost.
var shape = shapeOf(reflect.TypeFor[line](), reflect.TypeFor[Deployment]())

func shapeOf(types ...reflect.Type) string {
	hash := sha256.New()
	seen := map[reflect.Type]bool{}
	var add func(t reflect.Type)
	add = func(t reflect.Type) {
		fmt.Fprintln(hash, t, t.Kind())
		if seen[t] || t == reflect.TypeFor[time.Time]() {
			return
		}
		seen[t] = true
		switch t.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Array:
			add(t.Elem())
		case reflect.Map:
			add(t.Key())
			add(t.Elem())
		case reflect.Struct:
			for i := range t.NumField() {
				field := t.Field(i)
				fmt.Fprintln(hash, field.Name, field.Tag)
				add(field.Type)
			}
		}
	}
	for _, t := range types {
		add(t)
	}
	return hex.EncodeToString(hash.Sum(nil)[:8])
}
