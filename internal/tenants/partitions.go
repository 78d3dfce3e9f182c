package tenants

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/google/uuid"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/tenants/db"
)

func checkPartitions(fields *[]limit.FieldError, n int) {
	if n < 1 || n > check.MaxPartitions {
		*fields = append(*fields, limit.FieldProblem("partitions", limit.MustBe("a whole number from 1 to %d", check.MaxPartitions)))
	}
}

// changePartitions fills in the columns of a tenant's partitions. While an earlier change is in
// progress, its counters are at two places, and a further one would lose them.
func (s *Store) changePartitions(ctx context.Context, c *change, old Tenant, n int, params *db.UpdateTenantParams) error {
	head, err := c.PolicyVersion(ctx, old.ID)
	if err != nil {
		return err
	}
	params.Partitions, params.PartitionsBefore, params.PartitionsChangedAt = head.Partitions, head.PartitionsBefore, head.PartitionsChangedAt
	if n == old.Partitions {
		return nil
	}
	if old.Slug == PlatformSlug {
		return &ConflictError{CodePlatform, "the operator's own tenant has one partition"}
	}
	data, err := policyData(ctx, c.tx, c.Queries, old.ID, head, math.MaxInt)
	if err != nil {
		return err
	}
	now := s.instant()
	if ends := check.PartitionsSettled(&data); now.Before(ends) {
		return &ConflictError{CodeConflict, fmt.Sprintf("the last change of partitions ends at %s: try again then", ends.UTC().Format(time.RFC3339))}
	}
	has, err := c.HasCredits(ctx, old.ID)
	if err != nil {
		return err
	}
	if has {
		return &ConflictError{CodeConflict, "the tenant has credits, which cannot change their partition: create a tenant with the partitions that you need"}
	}
	params.Partitions, params.PartitionsBefore, params.PartitionsChangedAt = int32(n), head.Partitions, &now // at most MaxPartitions
	return nil
}

// partitionsOf returns the numbers of partitions of tenants: the present one, and the greater of it
// and the one before.
func partitionsOf(ctx context.Context, q *db.Queries, of ...uuid.UUID) (present, most map[uuid.UUID]int, err error) {
	rows, err := q.TenantPartitions(ctx, of)
	present, most = make(map[uuid.UUID]int, len(rows)), make(map[uuid.UUID]int, len(rows))
	for _, row := range rows {
		present[row.ID], most[row.ID] = int(row.Partitions), int(row.Most)
	}
	return present, most, err
}
