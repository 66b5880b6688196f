# Shared by the scripts of this repository; sourced, not run.

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
tools_dir=$root/.tools

say() { printf '%s\n' "$*" >&2; }
die() {
	say "error: $*"
	exit 1
}

# tool NAME prints the path of a pinned check tool, built when missing or when
# tools/go.mod changed. The first build of all takes minutes.
tool() {
	local bin=$tools_dir/$1
	if [ ! -x "$bin" ] || [ "$root/tools/go.mod" -nt "$bin" ] || [ "$root/tools/go.sum" -nt "$bin" ]; then
		say "building the pinned tool $1 (tools/go.mod)"
		mkdir -p "$tools_dir"
		local package
		package=$(cd "$root/tools" && go list -f '{{.ImportPath}}' tool | grep -E "/$1\$") || die "tools/go.mod has no tool $1"
		(cd "$root/tools" && go build -trimpath -o "$bin" "$package") >&2 || die "cannot build $1"
		touch "$bin"
	fi
	printf '%s\n' "$bin"
}
