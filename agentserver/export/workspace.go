package export

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Request says what of a workspace is exported.
type Request struct {
	Directory string   // absolute, without links
	BaseRef   string   // what a patch is against; "": found out
	Excludes  []string // further patterns
	Defaults  bool     // leave out what a tool can make again
	Secrets   bool     // do not leave out files that hold secrets
}

// RequestError is a request that cannot be carried out as it is.
type RequestError struct{ text string }

// Error tells why, in the contract's words.
func (e *RequestError) Error() string { return e.text }

// Workspace is a directory that is to be exported.
type Workspace struct {
	Root string // the one repository in the directory asked for, or that directory

	request     Request
	excludes    []string
	git         *repository // nil: it is none
	base        string      // commit or tree that a patch is against
	baseRef     string      // as it was asked for, or "auto"
	baseIsEmpty bool
}

// Patterns that are left out, in the manner of ignore rules. The first can be had again, the second hold secrets.
var (
	rebuildable = []string{
		".git/", "node_modules/", ".venv/", "venv/", "__pycache__/", ".mypy_cache/", ".pytest_cache/", ".ruff_cache/", "dist/",
		"build/", ".next/", "target/", "*.pyc",
	}
	secretFiles = []string{
		".env", ".env.*", "*.env", ".envrc", "*.pem", "*.key", "*.p12", "*.pfx", "*.keystore", "*.jks", "*.kdbx", "id_rsa", "id_dsa",
		"id_ecdsa", "id_ed25519", ".netrc", ".pgpass", ".pypirc", ".npmrc", ".htpasswd", ".git-credentials", ".aws/", ".ssh/", ".gnupg/",
		".docker/", ".kube/", "credentials.json", "secrets.json", "secrets.yml", "secrets.yaml", "terraform.tfvars", "*.tfstate",
		"*.tfstate.backup",
	}
)

// Find looks for what to export: the directory itself, or the only repository in it, three levels down at most. *RequestError.
func Find(ctx context.Context, request Request) (*Workspace, error) {
	w := &Workspace{Root: request.Directory, request: request, baseRef: "auto"}
	if strings.HasPrefix(request.BaseRef, "-") {
		return nil, &RequestError{"base_ref must not start with '-'"}
	}
	if !isRepository(w.Root) {
		if found := repositories(w.Root, 3); len(found) == 1 {
			w.Root = found[0]
		}
	}
	if request.Defaults {
		w.excludes = append(w.excludes, rebuildable...)
	}
	if !request.Secrets {
		w.excludes = append(w.excludes, secretFiles...)
	}
	w.excludes = append(w.excludes, request.Excludes...)
	if isRepository(w.Root) {
		var err error
		if w.git, err = openRepository(ctx, w.Root); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// Base finds what a patch is against. *RequestError when there is no repository or no such commit.
func (w *Workspace) Base(ctx context.Context) error {
	if w.git == nil {
		return &RequestError{"Not a git repository: Not a git repository: " + w.Root}
	}
	if w.request.BaseRef != "" {
		w.baseRef = w.request.BaseRef
		commit, err := w.git.commit(ctx, w.request.BaseRef)
		if err != nil {
			return &RequestError{fmt.Sprintf("base_ref '%s' could not be resolved", w.request.BaseRef)}
		}
		w.base = commit
		return nil
	}
	base, err := w.git.autoBase(ctx)
	if err != nil {
		return err
	}
	w.base, w.baseIsEmpty = base, base == emptyTree
	return nil
}

// Describe is what is told beside the export, by header.
func (w *Workspace) Describe() map[string]string {
	about := map[string]string{"X-Archive-Repo-Root": w.Root}
	if w.git == nil {
		return about
	}
	for name, value := range map[string]string{
		"X-Archive-Branch": w.git.branch, "X-Archive-Head-Commit": w.git.head, "X-Archive-Repo-Remote": withoutLogin(w.git.remote),
	} {
		if value != "" {
			about[name] = value
		}
	}
	if w.base != "" {
		about["X-Archive-Base-Ref"] = w.baseRef
		if !w.baseIsEmpty {
			about["X-Archive-Base-Commit"] = w.base
		}
	}
	return about
}

// withoutLogin is an address without whoever's name and password stand in it.
func withoutLogin(address string) string {
	parsed, err := url.Parse(address)
	if err != nil || parsed.Host == "" {
		if _, host, ok := strings.Cut(address, "@"); ok {
			return host
		}
		return address
	}
	parsed.User, parsed.RawQuery = nil, ""
	return parsed.String()
}

// isRepository reports whether a directory is the top of a git checkout.
func isRepository(dir string) bool {
	_, err := os.Lstat(filepath.Join(dir, ".git"))
	return err == nil
}

// repositories lists the checkouts beneath a directory, at most two of them: more than one cannot be chosen from.
func repositories(dir string, depth int) []string {
	entries, err := os.ReadDir(dir)
	if err != nil || depth == 0 {
		return nil
	}
	var found []string
	for _, entry := range entries {
		name := entry.Name()
		if !entry.IsDir() || strings.HasPrefix(name, ".") || slices.Contains([]string{"node_modules", "venv", "site-packages", "vendor"}, name) {
			continue
		}
		below := filepath.Join(dir, name)
		if isRepository(below) {
			found = append(found, below)
		} else {
			found = append(found, repositories(below, depth-1)...)
		}
		if len(found) > 1 {
			return found
		}
	}
	return found
}
