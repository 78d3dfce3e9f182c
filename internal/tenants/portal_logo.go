package tenants

import (
	"bytes"
	"context"
	"errors"
	"image"
	_ "image/jpeg" // decodes JPEG
	"image/png"
	"time"

	"golang.org/x/image/draw"
	_ "golang.org/x/image/webp" // decodes WebP

	"weir/internal/limit"
	"weir/internal/places"
)

// Limits of a logo.
const (
	MaxLogoBytes  = 256 << 10 // as it is sent
	MaxLogoWidth  = 320       // pixels, as it is stored
	MaxLogoHeight = 96
	maxLogoSide   = 2048 // pixels, as it is sent
	// maxLogoScans is how many scans a JPEG may have. Each has few bytes and visits all pixels, so
	// a file of 256 KiB with 16 000 of them would take a minute. Encoders write about ten.
	maxLogoScans = 32
)

// logoWait is how long a logo waits for its turn among long work: a picture of 2048 by 2048 pixels
// takes up to 100 MB and 0.2 seconds while it is decoded.
const logoWait = 5 * time.Second

// TakeTurns makes the store share the turns of the instance for work that uses a processor.
// Otherwise it has turns of its own.
func (s *Store) TakeTurns(processors *places.Processors) {
	s.short.Store(processors.Short)
	s.long.Store(processors.Long)
}

// preparedLogo is a logo that was decoded for a change of a tenant, before the change.
type preparedLogo struct {
	file, logo []byte // as it was sent, and as it is stored
	problem    *limit.Problem
}

// unpreparedLogo is the error of a change with a logo that was not decoded.
type unpreparedLogo struct{ file []byte }

func (unpreparedLogo) Error() string { return "the logo was not decoded" }

// withLogo runs a change of the customer page that may have a new logo. Decoding takes long, so no
// transaction waits for it: if the change has a new logo, it is rolled back, and runs again when
// the logo is decoded. Errors: those of change, ErrTooManyLogos.
func (s *Store) withLogo(ctx context.Context, a Actor, change func(*preparedLogo) error) error {
	var prepared preparedLogo
	for {
		err := change(&prepared)
		var missing unpreparedLogo
		if !errors.As(err, &missing) {
			return err
		}
		if err := s.prepareLogo(ctx, a, missing.file, &prepared); err != nil {
			return err
		}
	}
}

func (s *Store) prepareLogo(ctx context.Context, a Actor, file []byte, out *preparedLogo) error {
	leave, err := s.long.Load().TakeWithin(ctx, a.tenant, s.logoWait)
	if err != nil {
		return ErrTooManyLogos
	}
	defer leave()
	out.file = bytes.Clone(file)
	out.logo, out.problem = CleanLogo(file)
	return nil
}

var tooManyScans = limit.Wrong("Save the picture as PNG, or as JPEG that is not progressive.", "must be a JPEG with at most %d scans", maxLogoScans)

var notALogo = limit.Wrong("Send a picture of one of these formats.", "must be a PNG, JPEG or WebP picture of at most %d KiB and %d by %d pixels", MaxLogoBytes>>10, maxLogoSide, maxLogoSide)

// CleanLogo decodes a PNG, JPEG or WebP picture and returns it as a new PNG, scaled down to
// MaxLogoWidth x MaxLogoHeight. Only pixels are kept: whatever else the file contained, such as a
// script or the place where a photo was taken, is not served to anybody. SVG is not accepted,
// because it is a document that can contain scripts and links.
func CleanLogo(file []byte) ([]byte, *limit.Problem) {
	if len(file) > MaxLogoBytes {
		return nil, notALogo
	}
	// The size is read first: a small file can decode to an enormous picture.
	config, format, err := image.DecodeConfig(bytes.NewReader(file))
	if err != nil || format != "png" && format != "jpeg" && format != "webp" ||
		config.Width < 1 || config.Height < 1 || config.Width > maxLogoSide || config.Height > maxLogoSide {
		return nil, notALogo
	}
	// Wherever a scan begins, there are these two bytes. Within a scan they cannot occur, and other
	// parts of a picture contain them a few times.
	if format == "jpeg" && bytes.Count(file, []byte{0xff, 0xda}) > maxLogoScans {
		return nil, tooManyScans
	}
	picture, _, err := image.Decode(bytes.NewReader(file))
	if err != nil {
		return nil, notALogo
	}
	size := picture.Bounds().Size()
	// In tenths of a percent of the size, so that whole pixels come out alike everywhere.
	scale := min(1000, 1000*MaxLogoWidth/size.X, 1000*MaxLogoHeight/size.Y)
	to := image.NewNRGBA(image.Rect(0, 0, max(1, size.X*scale/1000), max(1, size.Y*scale/1000)))
	if scale < 1000 {
		draw.CatmullRom.Scale(to, to.Bounds(), picture, picture.Bounds(), draw.Src, nil)
	} else { // pixel by pixel, so that a stored logo is stored as the same one
		at := picture.Bounds().Min
		for y := range size.Y {
			for x := range size.X {
				to.Set(x, y, picture.At(at.X+x, at.Y+y))
			}
		}
	}
	var out bytes.Buffer
	if err := png.Encode(&out, to); err != nil {
		return nil, notALogo
	}
	return out.Bytes(), nil
}
