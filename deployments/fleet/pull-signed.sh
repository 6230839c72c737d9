#!/bin/sh
# Brings a checkout to the newest commit of one branch, if a trusted key has signed it; docs/fleet.md explains it.
#
#   pull-signed.sh CHECKOUT ALLOWED_SIGNERS BRANCH [MANIFEST...]
#
# Exit code 0: the checkout is at that commit. 1: it stays as it is, and the last line of stderr says why.
# An `ortdeploy watch` over the checkout then applies what has changed, and keeps the last good version if it is refused.
set -eu
checkout=$1 signers=$(realpath "$2") branch=$3
shift 3
cd "$checkout"
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE
export GIT_TERMINAL_PROMPT=0 LC_ALL=C
git=$(git rev-parse --absolute-git-dir)
underway=$git/ortdeploy-pull
refuse() { echo "refused: $*; $(git rev-parse --short=12 HEAD) stays" >&2; exit 1; }

exec 9> "$git/ortdeploy-pull.lock"
flock -n 9 || { echo "another pull is running" >&2; exit 1; }

if [ -e "$underway" ]; then  # the last pull was killed while it wrote the files of a commit that had passed all below
  rm -f "$git/index.lock" "$git/HEAD.lock" "$git/refs/heads/$branch.lock"
  git reset -q --hard "$(grep -Ex '[0-9a-f]{40,64}' "$underway" || echo HEAD)"
  rm "$underway"
fi
edited=$(git status --porcelain --untracked-files=no)
[ -z "$edited" ] || refuse "files were edited here ($(echo "$edited" | head -1 | cut -c4-)): git stash puts them aside"
[ "$(git symbolic-ref -q --short HEAD)" = "$branch" ] || refuse "the checkout is not on the branch $branch"

timeout 300 git -c fetch.fsckObjects=true fetch -q --no-tags origin "+refs/heads/$branch:refs/remotes/origin/$branch" \
  || refuse "the branch cannot be fetched"
new=$(git rev-parse "refs/remotes/origin/$branch")
[ "$new" != "$(git rev-parse HEAD)" ] || exit 0

# Only keys of ALLOWED_SIGNERS count, and no key that a keyring of gpg happens to hold.
git -c gpg.ssh.allowedSignersFile="$signers" -c gpg.program=false -c gpg.x509.program=false verify-commit "$new" 2> /dev/null \
  || refuse "$new is not signed by a trusted key"
git merge-base --is-ancestor HEAD "$new" || refuse "$new does not follow what is here: the branch was rewritten, or goes back"

if [ $# -gt 0 ]; then  # the signature is over what is in the commit: all that the manifests name must be there, and locked
  tried=$(mktemp -d)
  trap 'git worktree remove --force "$tried" 2> /dev/null || rm -rf "$tried"; git worktree prune' EXIT
  git worktree add -q --detach "$tried" "$new"
  (cd "$tried" && ortdeploy lock --check -q "$@" >&2) || refuse "$new has a model without its digest (ortdeploy lock)"
fi

echo "$new" > "$underway"
sync "$underway"
git merge -q --ff-only "$new" || refuse "$new cannot be checked out"
rm "$underway"
