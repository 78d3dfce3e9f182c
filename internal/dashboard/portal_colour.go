package dashboard

import (
	"fmt"
	"math"
	"strconv"
)

// minContrast is the least contrast of text that WCAG 2.2 AA requires.
const minContrast = 4.5

// rgb is a colour, with parts from 0 to 1.
type rgb [3]float64

var (
	white = rgb{1, 1, 1}
	black = rgb{}
	// The backgrounds of the two themes on which an accent is hardest to read: see app.css.
	lightCanvas = parseColour("#eef2f2")
	darkCanvas  = parseColour("#202b2d")
)

func parseColour(text string) rgb {
	n, _ := strconv.ParseUint(text[1:], 16, 32) // validated when it was stored
	return rgb{float64(n>>16&255) / 255, float64(n>>8&255) / 255, float64(n&255) / 255}
}

func (c rgb) String() string {
	part := func(f float64) int { return int(math.Round(255 * f)) }
	return fmt.Sprintf("#%02x%02x%02x", part(c[0]), part(c[1]), part(c[2]))
}

// luminance is that of WCAG.
func (c rgb) luminance() float64 {
	linear := func(f float64) float64 {
		if f <= 0.04045 {
			return f / 12.92
		}
		return math.Pow((f+0.055)/1.055, 2.4)
	}
	return 0.2126*linear(c[0]) + 0.7152*linear(c[1]) + 0.0722*linear(c[2])
}

func contrast(a, b rgb) float64 {
	x, y := a.luminance(), b.luminance()
	return (max(x, y) + 0.05) / (min(x, y) + 0.05)
}

// mixed returns c with this share of other.
func (c rgb) mixed(other rgb, share float64) rgb {
	for i := range c {
		c[i] += (other[i] - c[i]) * share
	}
	return c
}

// readableOn returns the colour that is nearest to c in the direction of towards and can be read on
// the background.
func (c rgb) readableOn(background, towards rgb) rgb {
	for share := 0.0; share < 1; share += 0.02 {
		// Compared as it is written, because rounding can cost the last bit of contrast.
		if near := parseColour(c.mixed(towards, share).String()); contrast(near, background) >= minContrast {
			return near
		}
	}
	return towards
}

// accentPalette has the colours that the customer page makes of an accent. Every accent gives
// readable text: it is darkened for links on light backgrounds and lightened for those on dark
// ones, and text on a button is white or black, whichever has more contrast.
type accentPalette struct{ Light, Dark, Fill, OnFill, Hover rgb }

func paletteOf(accent string) accentPalette {
	c := parseColour(accent)
	p := accentPalette{Light: c.readableOn(lightCanvas, black), Dark: c.readableOn(darkCanvas, white), Fill: c, OnFill: white}
	away := black
	if contrast(black, c) > contrast(white, c) {
		p.OnFill, away = black, white
	}
	p.Hover = c.mixed(away, 0.15)
	return p
}

// Adjusted reports whether the page cannot use the accent for links as it is.
func (p accentPalette) Adjusted() bool { return p.Light != p.Fill || p.Dark != p.Fill }

// styles returns the style sheet that gives a page the colours.
func (p accentPalette) styles() string {
	return fmt.Sprintf(":root { --brand: light-dark(%s, %s); --brand-fill: %s; --on-brand: %s; --brand-hover: %s; }\n",
		p.Light, p.Dark, p.Fill, p.OnFill, p.Hover)
}
