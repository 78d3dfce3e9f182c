package tenants

import (
	"context"
	"errors"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// A round that ended because ten tenants failed one after the other does not keep the rest for
// ever: the next one continues behind them. Before, it began with the same ten.
func TestPurgeRoundsContinue(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	for _, page := range []int{1, 2, 3, 7, 100} {
		at := &turn{}
		failing := map[byte]bool{}
		var done []byte
		round := func() error {
			done = nil
			return purgeRound[uuid.UUID]{at: at, most: page,
				tenant: func(id uuid.UUID) uuid.UUID { return id }, behind: func(id uuid.UUID) uuid.UUID { return id },
				read: func(after uuid.UUID) (ids []uuid.UUID, err error) {
					for i := after[0] + 1; i <= 30 && len(ids) < page; i++ {
						ids = append(ids, uuid.UUID{i})
					}
					return ids, nil
				},
				do: func(id uuid.UUID) error {
					done = append(done, id[0])
					if failing[id[0]] {
						return broken
					}
					return nil
				},
			}.run(context.Background())
		}
		upTo := func(from, to byte) (ids []byte) {
			for ; from <= to; from++ {
				ids = append(ids, from)
			}
			return ids
		}
		require.NoError(t, round())
		require.Equal(t, upTo(1, 30), done)

		for i := byte(3); i <= 14; i++ {
			failing[i] = true
		}
		require.ErrorIs(t, round(), broken)
		require.Equal(t, upTo(1, 12), done)
		require.ErrorIs(t, round(), broken, "of the second part")
		require.Equal(t, append(upTo(13, 30), upTo(1, 12)...), done)
		require.ErrorIs(t, round(), broken)
		require.Equal(t, append(upTo(13, 30), upTo(1, 12)...), done, "behind the same ten, until fewer fail")

		failing = map[byte]bool{5: true}
		require.ErrorIs(t, round(), broken)
		require.Equal(t, append(upTo(13, 30), upTo(1, 12)...), done)
		require.ErrorIs(t, round(), broken)
		require.Equal(t, upTo(1, 30), done, "all of them are tried, so the next one begins at the beginning")

		for i := byte(1); i <= 30; i++ {
			failing[i] = true
		}
		for _, want := range [][]byte{upTo(1, 10), upTo(11, 20), upTo(21, 30), upTo(1, 10)} {
			require.ErrorIs(t, round(), broken)
			require.Equal(t, want, done)
		}
	}
}
