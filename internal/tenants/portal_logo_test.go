package tenants_test

import (
	"bytes"
	"encoding/binary"
	"image"
	"image/jpeg"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/limit"
	"weir/internal/places"
	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

// progressive returns a grey progressive JPEG of n scans, of which all but the first refine every
// coefficient of the picture, in few bytes.
func progressive(side, n int) []byte {
	var b bytes.Buffer
	segment := func(marker byte, content ...byte) {
		b.Write([]byte{0xff, marker})
		_ = binary.Write(&b, binary.BigEndian, uint16(len(content)+2))
		b.Write(content)
	}
	b.Write([]byte{0xff, 0xd8})
	segment(0xdb, append([]byte{0}, bytes.Repeat([]byte{1}, 64)...)...)
	segment(0xc2, 8, byte(side>>8), byte(side), byte(side>>8), byte(side), 1, 1, 0x11, 0)
	// One code of one bit each: a DC difference of 0, and the end of 2^14 to 2^15 - 1 blocks.
	segment(0xc4, append(append([]byte{0x00, 1}, make([]byte, 15)...), 0)...)
	segment(0xc4, append(append([]byte{0x10, 1}, make([]byte, 15)...), 0xe0)...)
	blocks := (side + 7) / 8 * ((side + 7) / 8)
	segment(0xda, 1, 1, 0, 0, 0, 1)
	b.Write(make([]byte, blocks/8+1))
	for range n - 1 {
		segment(0xda, 1, 1, 0, 1, 63, 0x10)
		b.Write(make([]byte, (blocks/(1<<14)+1)*15/8+1))
	}
	b.Write([]byte{0xff, 0xd9})
	return b.Bytes()
}

// A JPEG of a few kilobytes can have thousands of scans, and each visits all pixels: before, a file
// of 24 KB took 5 seconds, and one of 256 KB a minute.
func TestLogoWithManyScans(t *testing.T) {
	t.Parallel()
	_, err := jpeg.Decode(bytes.NewReader(progressive(64, 1000)))
	require.NoError(t, err, "the picture is valid")
	require.Less(t, len(progressive(2048, 1000)), 40_000)
	for n, accepted := range map[int]bool{1: true, 32: true, 33: false, 1000: false} {
		_, problem := tenants.CleanLogo(progressive(256, n))
		require.Equal(t, accepted, problem == nil, n)
		if problem != nil {
			require.Equal(t, "must be a JPEG with at most 32 scans", problem.Message)
		}
	}
}

// While a logo is decoded, or waits for its turn, no transaction is open: other changes of the
// tenant are made.
func TestLogosAreDecodedOutsideOfTransactions(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	a, _ := d.Tenant("tenant-a")
	logo := picture(t, 30, 20, asPNG)
	apply := func(edit func(*tenants.Portal)) error {
		_, err := d.Store.ApplyDocument(t.Context(), a, tenants.Document{EditPortal: edit}, tenants.Apply{})
		return err
	}
	for slug, change := range map[string]func(edit func(*tenants.Portal)) error{
		"settings": func(edit func(*tenants.Portal)) error {
			_, err := d.Store.EditPortal(t.Context(), a, tenants.Match{}, func(p *tenants.Portal) error {
				edit(p)
				return nil
			})
			return err
		},
		"document": apply,
	} {
		leave, err := d.Store.TakeLogoTurn(t.Context(), a.TenantID())
		require.NoError(t, err)
		edited, done := make(chan struct{}, 2), make(chan error, 1)
		go func() {
			done <- change(func(p *tenants.Portal) {
				p.Brand, p.Logo = slug, logo
				edited <- struct{}{}
			})
		}()
		<-edited
		r := limit.NewRule(slug)
		r.Limit, r.Window = 1, window(t, "1m")
		_, err = d.Store.CreateRule(t.Context(), a, r)
		require.NoError(t, err, "%s: nothing waits for the logo", slug)
		require.Empty(t, done, slug)
		leave()
		require.NoError(t, <-done, slug)
		got, err := d.Store.Portal(t.Context(), a)
		require.NoError(t, err)
		require.Equal(t, slug, got.Brand)
		config, _, err := image.DecodeConfig(bytes.NewReader(got.Logo))
		require.NoError(t, err)
		require.Equal(t, [2]int{30, 20}, [2]int{config.Width, config.Height})
		logo = picture(t, 30, 20, asJPEG)
	}
}

// A tenant decodes one logo at once. One more is refused after a while, and changes nothing.
func TestLogosAtOnce(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	a, _ := d.Tenant("tenant-a")
	b, _ := d.Tenant("tenant-b")
	d.Store.TakeTurns(places.NewProcessors(8))
	leave, err := d.Store.TakeLogoTurn(t.Context(), a.TenantID())
	require.NoError(t, err)
	edit := func(actor tenants.Actor) error {
		_, err := d.Store.EditPortal(t.Context(), actor, tenants.Match{}, func(p *tenants.Portal) error {
			p.Logo = picture(t, 30, 20, asPNG)
			return nil
		})
		return err
	}
	d.Store.SetLogoWait(0)
	require.NoError(t, edit(b), "another tenant does not wait")
	require.ErrorIs(t, edit(a), tenants.ErrTooManyLogos)
	got, err := d.Store.Portal(t.Context(), a)
	require.NoError(t, err)
	require.Nil(t, got.Logo)
	leave()
	require.NoError(t, edit(a))
}
