package seal_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/seal"
)

func ring(t *testing.T, keys string) *seal.Ring {
	t.Helper()
	r, err := seal.Parse(keys)
	require.NoError(t, err)
	return r
}

// During a rotation old texts must open, and after it they must not need the old key.
func TestEncryptionKeyRotation(t *testing.T) {
	t.Parallel()
	oldKey, newKey := seal.NewKey(), seal.NewKey()
	before := ring(t, oldKey)
	sealed, err := before.Seal([]byte("whsec_abc"), "here")
	require.NoError(t, err)
	require.False(t, bytes.Contains(sealed, []byte("whsec")), "the secret is not readable")
	require.True(t, before.Current(sealed))

	during := ring(t, newKey+", "+oldKey)
	text, err := during.Open(sealed, "here")
	require.NoError(t, err)
	require.Equal(t, "whsec_abc", string(text))
	require.False(t, during.Current(sealed))
	again, err := during.Seal(text, "here")
	require.NoError(t, err)

	after := ring(t, newKey)
	text, err = after.Open(again, "here")
	require.NoError(t, err)
	require.Equal(t, "whsec_abc", string(text))
	_, err = after.Open(sealed, "here")
	require.ErrorIs(t, err, seal.ErrUnknownKey)
}

// A ciphertext that was changed, cut or copied to another row must not open.
func TestDamage(t *testing.T) {
	t.Parallel()
	r := ring(t, seal.NewKey())
	sealed, err := r.Seal([]byte("secret"), "here")
	require.NoError(t, err)
	_, err = r.Open(sealed, "there")
	require.ErrorIs(t, err, seal.ErrDamaged)
	for i := range sealed {
		changed := bytes.Clone(sealed)
		changed[i] ^= 1
		_, err := r.Open(changed, "here")
		require.Error(t, err, "byte %d", i)
		_, err = r.Open(sealed[:i], "here")
		require.Error(t, err, "cut at %d", i)
	}
	other, err := r.Seal([]byte("secret"), "here")
	require.NoError(t, err)
	require.NotEqual(t, sealed, other, "equal secrets do not look equal")
}

func TestParse(t *testing.T) {
	t.Parallel()
	none, err := seal.Parse(" ")
	require.NoError(t, err)
	_, err = none.Seal(nil, "")
	require.ErrorIs(t, err, seal.ErrNoKey)
	_, err = none.Open(nil, "")
	require.ErrorIs(t, err, seal.ErrNoKey)
	key := seal.NewKey()
	for name, text := range map[string]string{
		"not base64": "???", "too short": "YWJj", "an empty part": key + ",", "the same key twice": key + "," + key,
	} {
		_, err := seal.Parse(text)
		require.Error(t, err, name)
		require.NotContains(t, err.Error(), key, name)
	}
}
