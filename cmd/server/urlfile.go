package main

import (
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"sync"
)

// urlFile is a file with the URL of a server, whose user and password may change while the process
// runs. The file is read again for each new connection. If it is invalid, the last valid user and
// password stay.
type urlFile struct {
	name, path string // name is the variable's
	check      func(name string, s Secret) error

	mu      sync.Mutex
	log     *slog.Logger // nil until logTo
	user    *url.Userinfo
	problem string // the last problem that was logged
}

// openURLFile reads the file for the first time.
func openURLFile(name, path string, check func(name string, s Secret) error) (*urlFile, Secret, error) {
	f := &urlFile{name: name, path: path, check: check}
	s, user, err := f.read()
	f.user = user
	return f, s, err
}

func (f *urlFile) read() (Secret, *url.Userinfo, error) {
	content, err := os.ReadFile(f.path)
	if err != nil {
		return "", nil, fmt.Errorf("%s: %w", f.name, err)
	}
	s := Secret(strings.TrimSpace(string(content)))
	if s == "" {
		return "", nil, fmt.Errorf("%s: %s is empty; it must contain a URL", f.name, f.path)
	}
	if err := f.check(f.name, s); err != nil {
		return "", nil, err
	}
	u, err := url.Parse(string(s))
	if err != nil {
		return "", nil, fmt.Errorf("%s: the URL in %s is not valid", f.name, f.path) // err has the password
	}
	return s, u.User, nil
}

// credentials returns the current user and password, or "" for none.
func (f *urlFile) credentials() (user, password string) {
	_, found, err := f.read()
	f.mu.Lock()
	defer f.mu.Unlock()
	problem := ""
	switch {
	case err != nil:
		problem = err.Error()
		if problem != f.problem && f.log != nil {
			f.log.Error("credentials not read; the last valid ones stay", "variable", f.name, "error", err)
		}
	case found.String() != f.user.String():
		f.user = found
		if f.log != nil {
			f.log.Info("credentials changed", "variable", f.name)
		}
	}
	f.problem = problem
	password, _ = f.user.Password()
	return f.user.Username(), password
}

// logTo sets the logger.
func (f *urlFile) logTo(log *slog.Logger) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.log = log
}

// readFiles reads the URLs in files.
func (c *Config) readFiles() (err error) {
	if c.databaseFile == nil && c.DatabaseURLFile != "" {
		if c.DatabaseURL != "" {
			return settingError("WEIR_DATABASE_URL and WEIR_DATABASE_URL_FILE are both set; set one of them")
		}
		if c.databaseFile, c.DatabaseURL, err = openURLFile("WEIR_DATABASE_URL_FILE", c.DatabaseURLFile, checkDatabaseURL); err != nil {
			return err
		}
	}
	if c.redisFile == nil && c.RedisURLFile != "" {
		if c.RedisURL != "" {
			return settingError("WEIR_REDIS_URL and WEIR_REDIS_URL_FILE are both set; set one of them")
		}
		if c.redisFile, c.RedisURL, err = openURLFile("WEIR_REDIS_URL_FILE", c.RedisURLFile, checkRedisURL); err != nil {
			return err
		}
	}
	return nil
}
