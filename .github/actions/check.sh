# Validates manifests and plans them for all devices, as action.yml says: annotations to stdout, numbers to GITHUB_OUTPUT, what
# each job does on each device to GITHUB_STEP_SUMMARY. It ends with 1 if anything was refused.
set -euo pipefail
shopt -s nullglob

# Fills an array with the files that the lines of a text name; a line that names nothing stays, so that ortdeploy says so.
files_of() {
  local -n found=$1
  local line matches
  found=()
  while IFS= read -r line; do
    line="${line#"${line%%[![:space:]]*}"}" line="${line%"${line##*[![:space:]]}"}"
    [[ -n $line ]] || continue
    IFS='' matches=($line)  # a pattern is matched, and spaces are kept
    found+=("${matches[@]:-$line}")
  done <<< "$2"
}

files_of manifests "$MANIFESTS"
files_of devices "$DEVICES"
flags=()
while IFS= read -r flag; do [[ -z $flag ]] || flags+=("$flag"); done <<< "$FLAGS"
if (( ${#manifests[@]} == 0 )); then
  echo "::error title=ortdeploy::The input manifests names nothing."
  exit 1
fi

shown=$(mktemp) table=$(mktemp) bad=0
trap 'rm -f "$shown" "$table"' EXIT

# Runs one command, shows each annotation once, and adds a row to the summary. The lines of a table are kept for its end.
check() {
  local title=$1 lines verdict=passed
  shift
  echo "::group::$title"
  lines=$("$@") || { verdict=refused bad=1; }
  printf '%s\n' "$lines" | awk -v shown="$shown" -v table="$table" '
    BEGIN { while ((getline line < shown) > 0) seen[line] = 1 }
    /^\|/ { print > table; next }
    NF && !seen[$0]++ { print; print >> shown }'
  echo "::endgroup::"
  printf '| %s | %s |\n' "$title" "$verdict" >> "$GITHUB_STEP_SUMMARY"
}

printf '| ortdeploy | |\n| --- | --- |\n' >> "$GITHUB_STEP_SUMMARY"
check "validate" ortdeploy validate --quiet --format github "${flags[@]}" -- "${manifests[@]}"
if (( ! bad )); then
  if (( ${#devices[@]} )); then
    check "plan" ortdeploy plan --quiet --format github "${flags[@]}" "${devices[@]/#/--device=}" -- "${manifests[@]}"
    { echo; cat "$table"; } >> "$GITHUB_STEP_SUMMARY"
  fi
fi
{
  echo "errors=$(grep -c '^::error' "$shown" || true)"
  echo "warnings=$(grep -c '^::warning' "$shown" || true)"
} >> "$GITHUB_OUTPUT"
exit "$bad"
