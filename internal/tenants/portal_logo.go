package tenants

import (
	"bytes"
	"image"
	_ "image/jpeg" // decodes JPEG
	"image/png"

	"golang.org/x/image/draw"
	_ "golang.org/x/image/webp" // decodes WebP

	"weir/internal/limit"
)

// Limits of a logo.
const (
	MaxLogoBytes  = 256 << 10 // as it is sent
	MaxLogoWidth  = 320       // pixels, as it is stored
	MaxLogoHeight = 96
	maxLogoSide   = 2048 // pixels, as it is sent
)

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
