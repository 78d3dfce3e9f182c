package tenants

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/puddle/v2"

	"weir/internal/check"
	"weir/internal/engine"
	"weir/internal/limit"
)

var (
	// ErrNotFound: the tenant has no such object. Another tenant's object is not found either.
	ErrNotFound = errors.New("not found")
	// ErrPreconditionFailed: the object is not, or no longer, at a version that Match names.
	ErrPreconditionFailed = errors.New("the object has changed or does not exist")
	// ErrMissing: the object does not exist, but Match requires it. It is an ErrPreconditionFailed.
	ErrMissing = fmt.Errorf("%w: there is none", ErrPreconditionFailed)
	// ErrWrongMode: the endpoint takes the events of another mode of the billing system.
	ErrWrongMode = errors.New("the event is of another mode than the endpoint")
	// ErrNoText: nothing can have a text that is not valid UTF-8 or has a NUL character.
	ErrNoText = errors.New("a text has characters that cannot be stored")
	// ErrUnavailable: Postgres is unavailable, overloaded or read-only. A write that was
	// interrupted may have been committed.
	ErrUnavailable = errors.New("the database is not available")
	// ErrTooManyExports: others are being read slowly, and one more would use a connection that
	// other requests need.
	ErrTooManyExports = errors.New("too many concurrent exports")
	// ErrTooManyLogos: other pictures are being decoded.
	ErrTooManyLogos = errors.New("too many pictures are being decoded")
	// ErrInterrupted: an import ended because of a change that needs the right to manage, or of
	// the tenant itself. Nothing was imported.
	ErrInterrupted = errors.New("the import was interrupted by a change of keys, members or the tenant")
	// ErrTooManyReports: the tenant had no turn of the processors for a report of usage.
	ErrTooManyReports = errors.New("too many reports of usage are being computed")
	// ErrNotOperator: only the operator of the service may do this.
	ErrNotOperator = errors.New("only the operator may do this")
	// ErrForbidden: the actor's role or key does not allow this kind of change.
	ErrForbidden = errors.New("this role may not do that")
	// ErrOwnersOnly: only an owner can invite, create, change and remove owners. It is an
	// ErrForbidden.
	ErrOwnersOnly = fmt.Errorf("%w: only an owner may do that to an owner, or make one", ErrForbidden)
	// ErrNotPermitted: a key cannot give another key or a member more permissions or a later expiry
	// than it has.
	ErrNotPermitted = errors.New("a key cannot grant more than it has itself")
)

// Codes of ConflictError.
const (
	CodeSlugTaken   = "SLUG_TAKEN"
	CodeDefaultPlan = "DEFAULT_PLAN" // the default plan can only be replaced by another one
	CodePlanInUse   = "PLAN_IN_USE"  // subjects have it
	// A plan has so many older versions that it gets no more.
	CodeTooManyVersions  = "TOO_MANY_PLAN_VERSIONS"
	CodeMigrationRunning = "MIGRATION_RUNNING" // of this plan
	CodeMigrationEnded   = "MIGRATION_ENDED"
	CodeKeyInactive      = "KEY_NOT_ACTIVE"  // revoked, expired or rotated
	CodePlatform         = "PLATFORM_TENANT" // the operator's own tenant cannot be deleted
	CodeInProgress       = "IDEMPOTENCY_KEY_IN_USE"
	CodeLastOwner        = "LAST_OWNER"    // a tenant must have at least one
	CodeMemberExists     = "MEMBER_EXISTS" // a member has this email already
	CodeConflict         = "CONFLICT"
)

// ConflictError means that a change contradicts the existing state. Detail says what to do.
type ConflictError struct{ Code, Detail string }

func (e *ConflictError) Error() string { return e.Detail }

// InvalidError lists the fields of an input that are out of range.
type InvalidError struct {
	Fields []limit.FieldError
	// Tier means that the input is valid, but the tenant's tier does not allow it.
	Tier bool
}

func (e *InvalidError) Error() string {
	texts := make([]string, len(e.Fields))
	for i, f := range e.Fields {
		texts[i] = f.Error()
	}
	return strings.Join(texts, "; ")
}

func invalid(field string, p *limit.Problem) error {
	return &InvalidError{Fields: []limit.FieldError{limit.FieldProblem(field, p)}}
}

// noPlan is the problem of a reference to a plan that does not exist, in words that name it.
func noPlan(slug string) *limit.Problem {
	return noSuchPlan.With(fmt.Sprintf("%s: %q", noSuchPlan.Message, slug))
}

// Problems that occur in several places.
var (
	noSuchPlan     = limit.NotListed("GET /v1/plans", "Create the plan first, or use one %s.", "names no plan of this tenant")
	noSuchRule     = limit.NotListed("GET /v1/rules", "Create the rule first, or use one %s.", "names no rule of this tenant")
	noSuchEndpoint = limit.NotListed("GET /v1/billing/endpoints", "Create the endpoint first, or use one %s.", "names no billing endpoint of this tenant")
	notAnyCursor   = limit.Wrong("Start again without a cursor.", "is not one of this list")
	notAnyYear     = limit.MustBe("a time from year 1 to year %d", maxYear)
)

// isFixed returns the problem of a name that cannot change.
func isFixed(what string) *limit.Problem {
	return limit.Wrong("Omit it, or create another "+what+" with the new name.", "cannot change once the %s is created", what)
}

// invalidIf returns an InvalidError with the fields, or nil if there are none.
func invalidIf(fields []limit.FieldError) error {
	if len(fields) == 0 {
		return nil
	}
	return &InvalidError{Fields: fields}
}

// uniqueConflicts are the conflicts that unique constraints report, by constraint.
var uniqueConflicts = map[string]ConflictError{
	"rules_tenant_id_slug_key":  {CodeSlugTaken, "there is a rule with this slug already"},
	"routes_tenant_id_slug_key": {CodeSlugTaken, "there is a route with this slug already"},
	"plans_tenant_id_slug_key":  {CodeSlugTaken, "there is a plan with this slug already"},
	"tenants_slug_key":          {CodeSlugTaken, "there is a tenant with this slug already"},
}

// ofCounters marks an error of the counter store, so that translate does not take it for one of
// Postgres: the connections of both fail with the same kinds of errors. If a call has ended only
// because the time of its context is over, it says nothing about the counters: Postgres may have
// taken that time.
func ofCounters(ctx context.Context, err error) error {
	if err == nil || errors.Is(err, engine.ErrOpenedSince) {
		return err
	}
	if over := ctx.Err(); over != nil && errors.Is(err, over) {
		return translate(err)
	}
	return fmt.Errorf("%w: %w", check.ErrCountersUnavailable, err)
}

// translate converts errors of Postgres and its driver to errors of this package. Errors of this
// package and of the counter store are unchanged.
func translate(err error) error {
	if err == nil || errors.Is(err, check.ErrCountersUnavailable) {
		return err
	}
	if errors.Is(err, pgx.ErrNoRows) {
		return ErrNotFound
	}
	var connectErr *pgconn.ConnectError // for any reason, such as a login without the required roles
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && !errors.As(err, &connectErr) {
		return translateCode(pgErr, err)
	}
	if connectionLost(err) {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return err
}

func translateCode(pgErr *pgconn.PgError, err error) error {
	switch pgErr.Code {
	case "23505": // unique_violation
		if conflict, known := uniqueConflicts[pgErr.ConstraintName]; known {
			return &conflict
		}
		return &ConflictError{CodeConflict, "something else has these values already"}
	case "22021": // a text is not valid UTF-8, or has a NUL character
		return fmt.Errorf("%w: %w", ErrNoText, err)
	case "25006", "40001", "40P01", lockNotAvailable, "57014":
		// a read-only server, a serialization failure or a deadlock, a lock timeout, a statement
		// timeout
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	switch pgErr.Code[:2] {
	case "08", "53", "57", "58": // connection, resources, shutdown, disk
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return err
}

func connectionLost(err error) bool {
	var connectErr *pgconn.ConnectError
	var netErr net.Error
	return errors.As(err, &connectErr) || errors.As(err, &netErr) || pgconn.Timeout(err) || pgconn.SafeToRetry(err) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, puddle.ErrClosedPool) || errors.Is(err, net.ErrClosed)
}

// lockNotAvailable is the code of an error of Postgres: a statement has waited too long for a lock.
const lockNotAvailable = "55P03"
