package api

import "strings"

// writtenCell keeps a spreadsheet from taking a text in a table for a formula, by an apostrophe before
// it: whoever asks checks chooses subjects and resources, and somebody else opens the table. A text
// that looks as if it had been written so gets one more, so that readCell finds every text again.
func writtenCell(text string) string {
	if looksLikeFormula(strings.TrimLeft(text, "'")) {
		return "'" + text
	}
	return text
}

// readCell is the text that writtenCell made a cell of.
func readCell(cell string) string {
	if text, quoted := strings.CutPrefix(cell, "'"); quoted && looksLikeFormula(strings.TrimLeft(text, "'")) {
		return text
	}
	return cell
}

func looksLikeFormula(text string) bool {
	return text != "" && strings.ContainsRune("=+-@\t\r", rune(text[0]))
}
