// Package frameworks tests the samples of the documentation that put a weir.Guard into chi, Echo
// and Gin. It has a module of its own, so that the client does not depend on them. It is not meant
// to be imported.
package frameworks
