package api

// A number such as 1e309 or 5e-310 takes 25 microseconds to parse, because it is none that the fast
// way of strconv can read: 100 times as long as others. Nobody writes one. So texts with many are
// refused before a library parses them.

// maxLongExponents is how many numbers with a long exponent a body may have: texts that are no
// numbers can look like one.
const maxLongExponents = 100

// longExponents returns how many numbers in a text may have an exponent of three digits or more.
func longExponents[T string | []byte](text T) (n int) {
	for i := 1; i < len(text); i++ {
		if text[i]|0x20 != 'e' || !isDigit(text[i-1]) && text[i-1] != '.' {
			continue
		}
		from := i + 1
		if from < len(text) && (text[from] == '+' || text[from] == '-') {
			from++
		}
		end := from
		for end < len(text) && isDigit(text[end]) {
			end++
		}
		if end-from >= 3 && (end == len(text) || !isLetter(text[end])) {
			n++
		}
		i = end - 1
	}
	return n
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func isLetter(c byte) bool { return 'a' <= c|0x20 && c|0x20 <= 'z' }
