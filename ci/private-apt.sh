# shellcheck shell=bash
# For ci/setup and ci/vm-tools to source: packages of another Debian release, without installing any.
#
# The caller sets `work`, a folder of its own with lists/partial and cache/archives/partial in it, and has
# the functions `say` and `die`.

# The mirror that the user's own apt takes this system's release from.
debian_mirror() {
    local codename mirror
    codename=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
    mirror=$(apt-get indextargets --format "\$(RELEASE)|\$(CODENAME)|\$(REPO_URI)" "Created-By: Packages" |
        awk -F'|' -v c="$codename" '$1 == c || $2 == c { print $3; exit }')
    [ -n "$mirror" ] || die "apt's own configuration names no mirror of Debian $codename"
    printf '%s\n' "$mirror"
}

# One line of sources.list for each release that is named.
debian_sources() {
    local keyring=/usr/share/keyrings/debian-archive-keyring.gpg mirror name
    [ -e "$keyring" ] || die "$keyring is missing" "install the package debian-archive-keyring"
    mirror=$(debian_mirror)
    for name in "$@"; do
        printf 'deb [signed-by=%s] %s %s main\n' "$keyring" "$mirror" "$name"
    done
}

# apt with its own sources, lists and cache under $work: nothing of the system's is read or changed but
# the list of installed packages (not even that one, where $work/status is a file) and the user's way to the network.
private_apt() {
    local tool=$1 status=()
    shift
    [ ! -e "$work/status" ] || status=(-o "Dir::State::status=$work/status")
    "$tool" -qq -o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=/dev/null \
        -o Dir::Etc::preferences=/dev/null -o Dir::Etc::preferencesparts=/dev/null \
        -o "Dir::State::lists=$work/lists" -o "Dir::Cache=$work/cache" "${status[@]}" \
        -o Acquire::Languages=none -o APT::Sandbox::User=root "$@"
}
