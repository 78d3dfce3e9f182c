package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/term"
)

type loginCmd struct {
	URL string `arg:"" help:"Address of the server, such as https://weir.example.com."`
}

// Run stores the server if it accepts the key.
func (c *loginCmd) Run(ctx context.Context, t *terminal) error {
	s := &server{URL: c.URL}
	if err := s.validate(); err != nil {
		return err
	}
	key, err := t.readSecret("API key: ")
	if err != nil {
		return err
	}
	s.Key = key
	_, err = s.do(ctx, call{method: http.MethodGet, path: "/v1/tenant"})
	var problem *problemError
	if errors.As(err, &problem) && problem.Status == http.StatusForbidden {
		err = nil // a key without read access is valid, too
	}
	if err != nil {
		return err
	}
	name, err := loginFile(t)
	if err != nil {
		return err
	}
	content, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	if err := writePrivate(name, append(content, '\n')); err != nil {
		return err
	}
	fmt.Fprintf(t.err, "Stored the key for %s in %s\n", s.URL, name)
	return nil
}

// writePrivate replaces a file, readable only by its owner.
func writePrivate(name string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return err
	}
	temporary, err := os.CreateTemp(filepath.Dir(name), ".new-*") // with the mode 0600
	if err != nil {
		return err
	}
	_, err = temporary.Write(content)
	err = errors.Join(err, temporary.Close())
	if err == nil {
		err = os.Rename(temporary.Name(), name)
	}
	if err != nil {
		_ = os.Remove(temporary.Name()) // the first error is returned
	}
	return err
}

// readSecret reads a line. A terminal does not show it.
func (t *terminal) readSecret(prompt string) (string, error) {
	if file, ok := t.in.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		fmt.Fprint(t.err, prompt)
		secret, err := term.ReadPassword(int(file.Fd()))
		fmt.Fprintln(t.err)
		return strings.TrimSpace(string(secret)), err
	}
	line, err := t.readLine()
	if err == nil && line == "" {
		err = errors.New("the key is empty: write it to standard input")
	}
	return line, err
}

func (t *terminal) readLine() (string, error) {
	line, err := bufio.NewReader(t.in).ReadString('\n')
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return strings.TrimSpace(line), err
}
