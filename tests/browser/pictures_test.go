package browser

import (
	"bytes"
	"cmp"
	"flag"
	"image"
	"image/color"
	"image/png"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// Directories of the screenshots; "" for none.
var (
	screenshots = flag.String("screenshots", "", "write screenshots of every page to this `directory`")
	readme      = flag.String("readme", "", "write the README's screenshots to this `directory`")
)

// shot saves a screenshot of the page if screenshots are on.
func (p *page) shot(name string) *page {
	p.t.Helper()
	if *screenshots != "" {
		p.must(p.write(filepath.Join(*screenshots, name+".png"), true), name)
	}
	return p
}

// showcase are the looks that the README shows.
var showcase = []string{"overview", "subject-denied", "rules", "rule-edit", "plans", "playground"}

// showcase saves a screenshot of the upper part of a page if the README shows it.
func (p *page) showcase(name string) {
	p.t.Helper()
	if *readme == "" || !slices.Contains(showcase, name) {
		return
	}
	file := filepath.Join(*readme, "page-"+name+".png")
	p.must(p.write(file, false), name)
	picture, err := os.ReadFile(file)
	p.must(err, name)
	small, err := fewColours(picture)
	p.must(err, name)
	p.must(os.WriteFile(file, small, 0o644), name)
}

// fewColours returns a PNG with its 256 most frequent colours, at less than half the size. The
// pages have few colours. The others are on the edges of letters, and are replaced by the nearest
// one.
func fewColours(picture []byte) ([]byte, error) {
	from, err := png.Decode(bytes.NewReader(picture))
	if err != nil {
		return nil, err
	}
	box := from.Bounds()
	count := map[color.Color]int{}
	for y := box.Min.Y; y < box.Max.Y; y++ {
		for x := box.Min.X; x < box.Max.X; x++ {
			count[from.At(x, y)]++
		}
	}
	colours := slices.SortedFunc(maps.Keys(count), func(a, b color.Color) int { return cmp.Compare(count[b], count[a]) })
	palette := color.Palette(colours[:min(256, len(colours))])
	nearest := map[color.Color]uint8{}
	for _, c := range colours {
		nearest[c] = uint8(palette.Index(c))
	}
	to := image.NewPaletted(box, palette)
	for y := box.Min.Y; y < box.Max.Y; y++ {
		for x := box.Min.X; x < box.Max.X; x++ {
			to.SetColorIndex(x, y, nearest[from.At(x, y)])
		}
	}
	var b bytes.Buffer
	err = (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&b, to)
	return b.Bytes(), err
}
