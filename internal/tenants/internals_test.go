package tenants

import "github.com/google/uuid"

// AuditListSQL is the statement of Store.Audit, from its start.
func AuditListSQL(tenant uuid.UUID, f AuditFilter) (sql string, args []any) {
	return auditListSQL(tenant, f, nil, 51)
}

// Checksummed appends the correct checksum to the text of a key.
func Checksummed(text string) string {
	sum := keyChecksum(text)
	return text + string(sum[:])
}

// ByIndexSQL is what goes before SubjectSearchSQL.
const ByIndexSQL = byIndexSQL

// SubjectSearchSQL is the statement of Store.Subjects, for the tests of how Postgres carries it
// out.
func SubjectSearchSQL(tenant uuid.UUID, f SubjectFilter, byName bool, after string, most int32) (sql string, args []any) {
	search := subjectSearch{SubjectFilter: f, byName: byName, after: after}
	return search.build(tenant, most)
}
