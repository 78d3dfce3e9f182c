package tenants_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// A customer of the billing system is one subject: no way of writing subjects gives two of them the
// same reference, and the error names the other subject. Otherwise a payment would move the plan of
// the wrong customer.
func TestBillingRefIsOneSubject(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	s, ctx := d.Store, t.Context()
	mustSubject(t, s, a, tenants.Subject{Subject: "ada", BillingRef: "cus_1"})
	mustSubject(t, s, a, tenants.Subject{Subject: "bob"})
	mustSubject(t, s, b, tenants.Subject{Subject: "bob", BillingRef: "cus_1"}) // another tenant's customer
	ways := map[string]func(subject, ref string) error{
		"PUT": func(subject, ref string) error {
			_, _, err := s.PutSubject(ctx, a, tenants.Subject{Subject: subject, BillingRef: ref}, tenants.Match{})
			return err
		},
		"document": func(subject, ref string) error {
			return second(s.ApplyDocument(ctx, a, tenants.Document{Subjects: []tenants.Subject{{Subject: subject, BillingRef: ref}}}, tenants.Apply{}))
		},
		"import": func(subject, ref string) error {
			return second(s.ImportSubjects(ctx, a, numbered([]tenants.SubjectLine{{Subject: subject, BillingRef: &ref}}), tenants.ImportMode{}))
		},
	}
	for way, put := range ways {
		for _, subject := range []string{"bob", "new"} {
			require.ErrorContains(t, put(subject, "cus_1"), `subject "ada"`, "%s of %s", way, subject)
		}
		require.NoError(t, put("ada", "cus_1"), way)
		require.NoError(t, put("ada", "cus_2"), way)
		require.NoError(t, put("bob", "cus_1"), "%s: it is free now", way)
		require.NoError(t, put("bob", ""), way)
		require.NoError(t, put("ada", "cus_1"), way)
	}
	edit := func(subject, ref string) error {
		return second(s.EditSubject(ctx, a, subject, tenants.Match{}, func(in *tenants.Subject) error { in.BillingRef = ref; return nil }))
	}
	require.ErrorContains(t, edit("bob", "cus_1"), `subject "ada"`)
	_, _, err := s.PutSubject(ctx, a, tenants.Subject{Subject: "bob", BillingRef: "cus_1"}, tenants.Match{})
	requireInvalid(t, err, "billing_ref")

	// Two subjects of one document, or of one file, cannot share one either, but they can exchange
	// theirs.
	shared := tenants.Document{Subjects: []tenants.Subject{{Subject: "x", BillingRef: "cus_9"}, {Subject: "y", BillingRef: "cus_9"}}}
	_, err = s.ApplyDocument(ctx, a, shared, tenants.Apply{DryRun: true})
	requireInvalid(t, err, "subjects.1.billing_ref")
	nine, one, two := "cus_9", "cus_1", "cus_2"
	require.ErrorContains(t, second(s.ImportSubjects(ctx, a, numbered([]tenants.SubjectLine{
		{Subject: "x", BillingRef: &nine}, {Subject: "y", BillingRef: &nine},
	}), tenants.ImportMode{DryRun: true})), `subject "x"`)
	require.NoError(t, edit("bob", "cus_2"))
	require.NoError(t, second(s.ApplyDocument(ctx, a, tenants.Document{Subjects: []tenants.Subject{
		{Subject: "ada", BillingRef: "cus_2"}, {Subject: "bob", BillingRef: "cus_1"},
	}}, tenants.Apply{})))
	require.NoError(t, second(s.ImportSubjects(ctx, a, numbered([]tenants.SubjectLine{
		{Subject: "ada", BillingRef: &one}, {Subject: "bob", BillingRef: &two},
	}), tenants.ImportMode{})))

	// Subjects of earlier releases that share one can be written, as long as they keep it.
	d.Exec("UPDATE subjects SET billing_ref = 'cus_1' WHERE subject = 'bob'")
	for way, put := range ways {
		require.NoError(t, put("bob", "cus_1"), way)
		require.NoError(t, put("ada", "cus_1"), way)
		require.ErrorContains(t, put("new", "cus_1"), `subject "ada"`, way)
	}
}
