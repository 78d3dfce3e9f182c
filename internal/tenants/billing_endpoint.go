package tenants

import (
	"context"
	"errors"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/limit"
	"weir/internal/tenants/db"
)

// The providers of billing events.
const (
	StripeProvider  = "stripe"
	GenericProvider = "generic" // signed as in Standard Webhooks
)

// Where the events of an endpoint name the subject.
const (
	FromCustomer  = "customer"            // the customer's id
	FromReference = "client_reference_id" // of the checkout
	FromMetadata  = "metadata."           // and a key: of the subscription, or of its customer
)

// BillingEndpoint receives the events of a billing system. Its secrets are never returned.
type BillingEndpoint struct {
	ID           uuid.UUID // part of the public address, and random
	Provider     string    // cannot be changed
	Name         string
	SecretHints  []string // the last four characters of each signing secret
	APIKeyHint   string   // the same of the API key; "": there is none
	SubjectFrom  string
	GraceDays    int
	FallbackPlan string // slug; "": the tenant's default plan
	Live         *bool  // whether its events are of live mode; nil: not known yet
	CreatedAt    time.Time
	UpdatedAt    time.Time
	Version      int64
	LastEventAt  *time.Time
	ReconciledAt *time.Time
	// PurchasesComparedAt is when its purchases were last compared with the provider; nil: never,
	// or all that the provider knows are to be compared.
	PurchasesComparedAt *time.Time
	// ReconcileFailedAt is when the last comparison with the provider failed, and ReconcileError
	// why; nil and "": it succeeded, or there was none.
	ReconcileFailedAt *time.Time
	ReconcileError    string
	// RefusedAt is when the endpoint last refused an event, and RefusedWhy why; nil: never.
	RefusedAt     *time.Time
	RefusedWhy    string
	signingSealed []byte
	apiKeySealed  []byte
}

const (
	maxBillingEndpoints = 100
	maxSigningSecrets   = 5
	maxSecretBytes      = 256
	maxGraceDays        = 365
	// reconcileEvery is how often an endpoint with an API key is compared with the provider.
	reconcileEvery = 24 * time.Hour
)

// fixedProvider is the problem of a changed provider.
var fixedProvider = limit.Wrong("Omit it, or create another endpoint.", "cannot change once the endpoint is created")

var metadataKey = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,40}$`)

func (e *BillingEndpoint) validate(fields *[]limit.FieldError) {
	add := func(field string, p *limit.Problem) { *fields = append(*fields, limit.FieldProblem(field, p)) }
	if e.Provider != StripeProvider && e.Provider != GenericProvider {
		add("provider", limit.MustBe("stripe or generic"))
	}
	checkText(fields, "name", e.Name, 200)
	key, fromMetadata := strings.CutPrefix(e.SubjectFrom, FromMetadata)
	switch {
	case e.SubjectFrom == FromCustomer, e.SubjectFrom == FromReference:
	case !fromMetadata || !metadataKey.MatchString(key):
		add("subject_from", limit.MustBe("customer, client_reference_id, or metadata. and a key of 1 to 40 of A-Z, a-z, 0-9, _ . -"))
	}
	if e.GraceDays < 0 || e.GraceDays > maxGraceDays {
		add("grace_days", limit.MustBe("a whole number from 0 to %d", maxGraceDays))
	}
}

const (
	placeSigning = "signing secrets"
	placeAPIKey  = "api key"
)

// CreateBillingEndpoint creates an endpoint. Stripe shows the signing secret after it has the
// address of the endpoint, so secrets.Signing may be nil for it: until there is a secret, all
// events are refused. Errors: *InvalidError (also for an unknown plan), *ConflictError with
// CodeNoEncryptionKey, ErrNotPermitted for a key that lacks what events can do.
func (s *Store) CreateBillingEndpoint(ctx context.Context, a Actor, in BillingEndpoint, secrets BillingSecrets) (out BillingEndpoint, err error) {
	var fields []limit.FieldError
	in.validate(&fields)
	switch {
	case secrets.Signing != nil:
		checkSigningSecrets(&fields, in.Provider, secrets.Signing)
	case in.Provider == GenericProvider:
		fields = append(fields, limit.FieldProblem("signing_secrets", limit.Wrong("Send the secret with which the sender signs its events.", "are required for the provider generic")))
	}
	key := ""
	if secrets.APIKey != nil {
		key = *secrets.APIKey
	}
	checkAPIKey(&fields, in.Provider, key)
	if err := invalidIf(fields); err != nil {
		return BillingEndpoint{}, err
	}
	in.ID = uuid.New() // only random bits, because it must not be guessable
	in.SecretHints, in.Live = hints(secrets.Signing), liveOf(key)
	err = s.change(ctx, a, MayManage, func(ctx context.Context, c *change) error {
		if !c.actor.mayTrustSender() {
			return ErrNotPermitted
		}
		plan, err := c.fallbackPlan(ctx, in.FallbackPlan)
		if err != nil {
			return err
		}
		count, err := c.CountBillingEndpoints(ctx, c.tenant)
		if err != nil {
			return err
		}
		if count >= maxBillingEndpoints {
			return invalid("provider", limit.Wrong("Delete an endpoint that is no longer needed.", "would be one endpoint too many: a tenant may have %d", maxBillingEndpoints))
		}
		if in.signingSealed, err = s.sealSigning(c.tenant, in.ID, secrets.Signing); err != nil {
			return err
		}
		if err := s.sealAPIKey(c, &in, key); err != nil {
			return err
		}
		version, err := c.next(ctx, parts{itself: true})
		if err != nil {
			return err
		}
		row, err := c.InsertBillingEndpoint(ctx, db.InsertBillingEndpointParams{
			TenantID: c.tenant, ID: in.ID, Provider: in.Provider, Name: in.Name, SigningSecrets: in.signingSealed,
			SigningSecretHints: in.SecretHints, ApiKey: in.apiKeySealed, ApiKeyHint: in.APIKeyHint, SubjectFrom: in.SubjectFrom,
			GraceDays: int32(in.GraceDays), FallbackPlanID: plan, Live: in.Live, CreatedAt: c.now, UpdatedAt: c.now,
			ReconcileAt: reconcileAt(in, c.now), Version: version,
		})
		out = billingEndpointOf(row, in.FallbackPlan)
		return err
	})
	return out, err
}

// reconcileAt returns when an endpoint is compared with the provider next: immediately if possible.
func reconcileAt(e BillingEndpoint, now time.Time) *time.Time {
	if e.apiKeySealed == nil {
		return nil
	}
	return &now
}

func (c *change) fallbackPlan(ctx context.Context, slug string) (*uuid.UUID, error) {
	if slug == "" {
		return nil, nil
	}
	plan, err := planRow(ctx, c.Queries, c.tenant, slug)
	if errors.Is(err, ErrNotFound) {
		return nil, invalid("fallback_plan", noSuchPlan)
	}
	return &plan.ID, err
}

// EditBillingEndpoint calls edit to change an endpoint; edit returns what to change of its secrets.
// An error of edit is returned unchanged and nothing changes. Errors: ErrNotFound,
// ErrPreconditionFailed, *InvalidError, *ConflictError with CodeNoEncryptionKey, ErrNotPermitted
// for secrets of a key that lacks what events can do.
func (s *Store) EditBillingEndpoint(ctx context.Context, a Actor, id uuid.UUID, m Match, edit func(*BillingEndpoint) (BillingSecrets, error)) (out BillingEndpoint, err error) {
	err = s.change(ctx, a, MayManage, func(ctx context.Context, c *change) error {
		old, err := readBillingEndpoint(ctx, c.Queries, c.tenant, id)
		if err != nil {
			return err
		}
		if err := m.check(old.Version); err != nil {
			return err
		}
		in := old
		secrets, err := edit(&in)
		if err != nil {
			return err
		}
		if !secrets.none() && !c.actor.mayTrustSender() {
			return ErrNotPermitted
		}
		var fields []limit.FieldError
		if in.Provider != old.Provider {
			return invalid("provider", fixedProvider)
		}
		in.validate(&fields)
		if err := s.changeSecrets(c, &in, secrets, &fields); err != nil {
			return err
		}
		if err := invalidIf(fields); err != nil {
			return err
		}
		plan, err := c.fallbackPlan(ctx, in.FallbackPlan)
		if err != nil {
			return err
		}
		if secrets.none() && sameEndpoint(in, old) {
			out = old
			return nil
		}
		if secrets.APIKey != nil { // first: changes of other tenants wait for those after c.next
			if err := c.RetryMeteredPushes(ctx, db.RetryMeteredPushesParams{TenantID: c.tenant, Lease: interval(pushLease)}); err != nil {
				return err
			}
		}
		out, err = c.writeBillingEndpoint(ctx, in, plan, secrets.APIKey != nil)
		if err != nil || secrets.APIKey == nil {
			return err
		}
		// Events may wait for lines that can be fetched now.
		return c.MarkBillingPrices(ctx, db.MarkBillingPricesParams{TenantID: c.tenant, ID: id, Mark: out.Version})
	})
	return out, err
}

func sameEndpoint(a, b BillingEndpoint) bool {
	return a.Name == b.Name && a.SubjectFrom == b.SubjectFrom && a.GraceDays == b.GraceDays && a.FallbackPlan == b.FallbackPlan
}

func (c *change) writeBillingEndpoint(ctx context.Context, in BillingEndpoint, plan *uuid.UUID, newKey bool) (BillingEndpoint, error) {
	version, err := c.next(ctx, parts{itself: true})
	if err != nil {
		return BillingEndpoint{}, err
	}
	return c.storeBillingEndpoint(ctx, in, plan, newKey, version)
}

func (c *change) storeBillingEndpoint(ctx context.Context, in BillingEndpoint, plan *uuid.UUID, newKey bool, version int64) (BillingEndpoint, error) {
	next := reconcileAt(in, c.now)
	if !newKey && next != nil && in.ReconciledAt != nil {
		later := in.ReconciledAt.Add(reconcileEvery)
		next = &later
	}
	row, err := c.UpdateBillingEndpoint(ctx, db.UpdateBillingEndpointParams{
		TenantID: c.tenant, ID: in.ID, Name: in.Name, SigningSecrets: in.signingSealed, SigningSecretHints: in.SecretHints,
		ApiKey: in.apiKeySealed, ApiKeyHint: in.APIKeyHint, SubjectFrom: in.SubjectFrom, GraceDays: int32(in.GraceDays),
		FallbackPlanID: plan, Live: in.Live, ReconcileAt: next, UpdatedAt: c.now, Version: version,
	})
	return billingEndpointOf(row, in.FallbackPlan), err
}

// DeleteBillingEndpoint deletes an endpoint with its prices, events and subscriptions. Subjects
// keep their plans. Errors: ErrNotFound, ErrPreconditionFailed.
func (s *Store) DeleteBillingEndpoint(ctx context.Context, a Actor, id uuid.UUID, m Match) error {
	return s.change(ctx, a, MayManage, func(ctx context.Context, c *change) error {
		old, err := readBillingEndpoint(ctx, c.Queries, c.tenant, id)
		if err != nil {
			return err
		}
		if err := m.check(old.Version); err != nil {
			return err
		}
		prices, err := c.BillingPricesOf(ctx, db.BillingPricesOfParams{TenantID: c.tenant, EndpointID: id})
		if err != nil {
			return err
		}
		if _, err := c.nextAtEnd(ctx, parts{itself: true}); err != nil {
			return err
		}
		for _, p := range prices {
			if err := c.DeleteBillingPrice(ctx, db.DeleteBillingPriceParams{TenantID: c.tenant, Price: p.Price}); err != nil {
				return err
			}
		}
		return c.DeleteBillingEndpoint(ctx, db.DeleteBillingEndpointParams{TenantID: c.tenant, ID: id})
	})
}

// BillingEndpoints lists endpoints, newest first, and returns where the next page begins.
func (s *Store) BillingEndpoints(ctx context.Context, a Actor, p Page) (out []BillingEndpoint, next string, err error) {
	params := db.BillingEndpointsParams{TenantID: a.tenant, Most: p.most()}
	if p.After != "" {
		micros, id, _ := strings.Cut(p.After, " ")
		at, err1 := strconv.ParseInt(micros, 10, 64)
		after, err2 := uuid.Parse(id)
		if err1 != nil || err2 != nil {
			return nil, "", invalid("cursor", notAnyCursor)
		}
		afterAt := time.UnixMicro(at).UTC()
		params.AfterAt, params.After = &afterAt, &after
	}
	err = s.read(ctx, a, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		rows, err := q.BillingEndpoints(ctx, params)
		if err != nil {
			return err
		}
		if size := int(p.most()) - 1; len(rows) > size {
			rows = rows[:size]
			last := rows[size-1]
			next = strconv.FormatInt(last.CreatedAt.UnixMicro(), 10) + " " + last.ID.String()
		}
		out = make([]BillingEndpoint, len(rows))
		for i, row := range rows {
			out[i] = billingEndpointRow(row)
		}
		return nil
	})
	return out, next, err
}

// BillingEndpointByID returns an endpoint, or ErrNotFound.
func (s *Store) BillingEndpointByID(ctx context.Context, a Actor, id uuid.UUID) (out BillingEndpoint, err error) {
	err = s.read(ctx, a, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		out, err = readBillingEndpoint(ctx, q, a.tenant, id)
		return err
	})
	return out, err
}

func readBillingEndpoint(ctx context.Context, q *db.Queries, tenant, id uuid.UUID) (BillingEndpoint, error) {
	row, err := q.BillingEndpointByID(ctx, db.BillingEndpointByIDParams{TenantID: tenant, ID: id})
	if err != nil {
		return BillingEndpoint{}, translate(err)
	}
	return billingEndpointRow(db.BillingEndpointsRow(row)), nil
}

func billingEndpointRow(row db.BillingEndpointsRow) BillingEndpoint {
	return BillingEndpoint{
		ID: row.ID, Provider: row.Provider, Name: row.Name, SecretHints: row.SigningSecretHints, APIKeyHint: row.ApiKeyHint,
		SubjectFrom: row.SubjectFrom, GraceDays: int(row.GraceDays), FallbackPlan: row.FallbackPlan, Live: row.Live,
		CreatedAt: row.CreatedAt, UpdatedAt: row.UpdatedAt, Version: row.Version, LastEventAt: row.LastEventAt, ReconciledAt: row.ReconciledAt, PurchasesComparedAt: row.PurchasesComparedAt,
		ReconcileFailedAt: row.ReconcileFailedAt, ReconcileError: row.ReconcileError, RefusedAt: row.RefusedAt, RefusedWhy: row.RefusedWhy,
		signingSealed: row.SigningSecrets, apiKeySealed: row.ApiKey,
	}
}

func billingEndpointOf(row db.BillingEndpoint, fallback string) BillingEndpoint {
	return BillingEndpoint{
		ID: row.ID, Provider: row.Provider, Name: row.Name, SecretHints: row.SigningSecretHints, APIKeyHint: row.ApiKeyHint,
		SubjectFrom: row.SubjectFrom, GraceDays: int(row.GraceDays), FallbackPlan: fallback, Live: row.Live,
		CreatedAt: row.CreatedAt, UpdatedAt: row.UpdatedAt, Version: row.Version, LastEventAt: row.LastEventAt, ReconciledAt: row.ReconciledAt, PurchasesComparedAt: row.PurchasesComparedAt,
		ReconcileFailedAt: row.ReconcileFailedAt, ReconcileError: row.ReconcileError, RefusedAt: row.RefusedAt, RefusedWhy: row.RefusedWhy,
		signingSealed: row.SigningSecrets, apiKeySealed: row.ApiKey,
	}
}

// Webhook is an endpoint in the form for receiving its events.
type Webhook struct {
	Tenant   uuid.UUID
	Endpoint uuid.UUID
	Provider string
	Secrets  []string
	Live     *bool // whether its events are of live mode; nil: not known yet
}

// The reasons for which an event is refused.
const (
	RefusedNoSecret     = "no_secret"     // the endpoint has no signing secret yet
	RefusedNoSignature  = "no_signature"  // a header is missing
	RefusedBadSignature = "bad_signature" // not made with a secret of the endpoint
	RefusedOldSignature = "old_signature" // made more than five minutes before or after now
	RefusedMalformed    = "malformed"     // not an event, or one with wrong fields
	RefusedWrongMode    = "wrong_mode"    // of live mode for an endpoint of test mode, or the other way round
	RefusedVolume       = "volume"        // the tenant has stored as many of this day as it may
)

// RefusalReasons are all of them.
var RefusalReasons = []string{RefusedNoSecret, RefusedNoSignature, RefusedBadSignature, RefusedOldSignature, RefusedMalformed, RefusedWrongMode, RefusedVolume}

// RecordBillingRefusal records that an endpoint refused an event just now. Call it rarely: anybody
// can send events that are refused.
func (s *Store) RecordBillingRefusal(ctx context.Context, w Webhook, why string) error {
	now := s.instant()
	return s.inTenant(ctx, AsSystem(w.Tenant, "billing"), func(ctx context.Context, q *db.Queries) error {
		return q.RecordBillingRefusal(ctx, db.RecordBillingRefusalParams{TenantID: w.Tenant, ID: w.Endpoint, At: &now, Why: why})
	})
}

// Webhook returns the endpoint with this id, of any tenant. Errors: ErrNotFound,
// ErrUnavailable, and an error if its secrets cannot be decrypted.
func (s *Store) Webhook(ctx context.Context, id uuid.UUID) (out Webhook, err error) {
	err = s.asSystemWithin(ctx, lookupTimeout, pgx.ReadOnly, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		row, err := q.WebhookEndpoint(ctx, id)
		if err != nil {
			return err
		}
		out = Webhook{Tenant: row.TenantID, Endpoint: row.ID, Provider: row.Provider, Live: row.Live}
		out.Secrets, err = s.openSigning(row.TenantID, row.ID, row.SigningSecrets)
		return err
	})
	return out, err
}
