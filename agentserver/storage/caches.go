package storage

// place is where a tool keeps what it can fetch or build again, relative to the home directory.
type place struct {
	path string
	each bool // every directory in it is a cache of its own, to be taken or left alone
}

// places is the whole list. A place is on it only if everything in it can be had again without the person: so not
// ~/.m2/repository, where `mvn install` puts what exists nowhere else, and not ~/.cargo/git, which holds checkouts.
var places = []place{
	{".cache", true}, // pip, uv, go-build, huggingface, …
	{".npm", true},
	{".bun/install/cache", false},
	{".yarn/berry/cache", false},
	{".local/share/pnpm/store", false},
	{"go/pkg/mod", true},
	{"go/pkg/mod/cache", true},
	{"go/pkg/sumdb", false},
	{".cargo/registry/cache", false},
	{".cargo/registry/index", false},
	{".cargo/registry/src", false},
	{".rustup/downloads", false},
	{".rustup/tmp", false},
	{".gradle/caches", false},
	{".ivy2/cache", false},
	{".nuget/packages", false},
	{".composer/cache", false},
}
