// Package frameworks tests the samples of the documentation that use a weir.Guard with chi, Echo
// and Gin. It is a separate module, so that the client does not depend on them. Do not import it.
package frameworks
