#!/usr/bin/env bash
# From the commit to the device: good and bad versions go to twelve devices, which twelve folders play. docs/fleet-demo.md
# explains each step. It takes ortdeploy's base install, under three minutes, and neither a network nor root.
#
#   deployments/fleet/demo.sh [FOLDER]
#
# FOLDER, which must not be there yet, keeps everything. The exit code is 1 if a step does not end as it should. Nothing is
# signed here, because that takes a tool of its own: docs/bundles.md.
set -euo pipefail
examples=$(cd "$(dirname "$0")/.." && pwd)
trap 'echo "demo: line $LINENO did not end well" >&2' ERR
if [ $# -eq 0 ]; then
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  set -- "$scratch/demo"
fi
mkdir "$1"
cd "$1"
unset "${!ORTDEPLOY_@}"
mkdir -p line/models line/checks/digits devices bundles said
devices="pi-1 pi-2 pi-3 pi-4 pi-5 pi-6 gate-1 gate-2 gate-3 jetson-1 jetson-2 jetson-3"
for one in $devices; do mkdir -p "roots/$one/inbox" "collected/$one"; done

step() { echo; echo "== $*"; }
must() { [ "$1" = "$2" ] || { printf 'demo: this was promised:\n%s\ndemo: this was found:\n%s\n' "$2" "$1" >&2; exit 1; }; }
bundle() { ortdeploy bundle line/digits.yaml -o "bundles/$1" --version "$1" --label "commit $1" > "said/bundle-$1"; }
on() { ORTDEPLOY_DEVICE=$1 ortdeploy "${@:2}" --root "roots/$1"; }
plan_for_all() { ortdeploy plan line/digits.yaml --device 'devices/*.yaml' 2> said/plan | sed 's/[0-9]* MiB//' | tr -s ' '; }
apply_on_all() {  # four at a time; prints those that refuse the bundle, and keeps in said/ what they say
  # shellcheck disable=SC2086  # a list of words
  printf '%s\n' $devices | xargs -P 4 -I{} sh -c \
    "ORTDEPLOY_DEVICE={} ortdeploy apply -q bundles/$1 --root roots/{} > said/{} 2>&1 || echo {}"
}
reason() { grep '^ortdeploy: ' "said/$1" | sed 's/ (id [0-9a-f]*)//' | fold -s -w 110 | sed 's/ $//'; }
fleet_says() {  # collects the status documents, and counts the devices that say the same
  for one in $devices; do cp -p roots/"$one"/.ortdeploy/status/*.json "collected/$one/"; done
  found=$({ ortdeploy fleet collected --format json || true; } | python3 -c '
import collections, json, sys
rows = (row["document"] for row in json.load(sys.stdin)["rows"])
said = ("{}, {}, {:,} rows".format(row["state"], row["version"]["label"], row["jobs"][0]["committed"]) for row in rows)
print(*(f"{number} x {each}" for each, number in sorted(collections.Counter(said).items())), sep="\n")')
  must "$found" "$1"
  echo "$found"
}

step "Commit 1 is good everywhere: planned for every board, then checked and applied on twelve devices"
cp "$examples/models/views.onnx" line/models/digits.onnx
cp "$examples/checks/inverted/inputs.npz" line/checks/digits/
cat > line/digits.yaml <<'END'
version: 1
name: digits
models:
  reader: {path: models/digits.onnx, providers: [CPU], gate: true, checks: [checks/digits]}
jobs:
  read:
    model: reader
    input: {path: inbox/*.npz, key: [path, row]}
    prepare: {image: [{scale: 0.0625}]}
    batch: {size: 50}
    postprocess: [{argmax: scores, as: digit}]
    output: {path: outbox/digits, format: csv, columns: [digit], rows_per_part: 50, on_upgrade: rerun}
END
ortdeploy check -q --record line/digits.yaml
for one in $devices; do
  case $one in pi-*) board=raspberry-pi-5 ;; gate-*) board=intel-n100 ;; *) board=jetson-orin-nano ;; esac
  sed "s/^name: .*/name: $one/" "$examples/devices/$board.yaml" > "devices/$one.yaml"
  cp "$examples/views.npz" "roots/$one/inbox/"
done
plan_for_all | tail -1
bundle 1
must "$(apply_on_all 1)" ""
fleet_says "12 x current, commit 1, 360 rows"

step "Commit 2 asks for CUDA, which a Pi does not have: red in the table, before any device sees it"
cp line/digits.yaml said/digits.yaml
sed 's/providers: \[CPU\]/providers: [CUDA, CPU]/' said/digits.yaml > line/digits.yaml
must "$(plan_for_all > said/table || echo refused)" refused
grep -E '^pi-1 |^jetson-1 |^Planned' said/table
cp said/digits.yaml line/digits.yaml

step "Commit 3 has other weights, which read worse: every device finds that out before it takes them"
python3 - <<'END'
import numpy, onnx
model = onnx.load("line/models/digits.onnx")
weights = next(each for each in model.graph.initializer if len(each.dims) == 2)
weights.CopyFrom(onnx.numpy_helper.from_array(-onnx.numpy_helper.to_array(weights), weights.name))
onnx.save(model, "line/models/digits.onnx")
END
bundle 3
# shellcheck disable=SC2086
must "$(apply_on_all 3 | sort)" "$(printf '%s\n' $devices | sort)"
reason pi-1
fleet_says "12 x refused, commit 1, 360 rows"

step "Commit 4 is a new export that reads as well; on the way to pi-3, one byte of it is swapped"
python3 - "$examples/models/views.onnx" <<'END'
import onnx, sys
model = onnx.load(sys.argv[1])
model.doc_string = "exported anew"
onnx.save(model, "line/models/digits.onnx")
END
bundle 4
cp -R bundles/4 said/way
weights=$(python3 -c 'import hashlib; print(hashlib.sha256(open("line/models/digits.onnx", "rb").read()).hexdigest())')
printf '~' | dd of="bundles/4/blobs/sha256/$weights" bs=1 seek=5000 conv=notrunc 2> /dev/null
must "$(on pi-3 apply -q bundles/4 2> said/pi-3 || echo refused)" refused
reason pi-3
rm -r bundles/4 && mv said/way bundles/4  # for the others it arrives as it was
must "$(devices=${devices/pi-3 /} apply_on_all 4)" ""
fleet_says "11 x current, commit 4, 360 rows
1 x refused, commit 1, 360 rows"

step "The power of jetson-2 fails in the middle of a run"
python3 - "$examples/views.npz" roots/jetson-2/inbox/more.npz <<'END'
import numpy, sys
numpy.savez(sys.argv[2], **{name: numpy.concatenate([rows] * 20) for name, rows in numpy.load(sys.argv[1]).items()})
END
python3 - roots/jetson-2 <<'END'
import os, signal, subprocess, sys
command = ["ortdeploy", "apply", "@digits", "--root", sys.argv[1], "--log-format", "json"]
run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, pipesize=4096, start_new_session=True)
for line in run.stderr:  # the log goes no further than the pipe has room, so the run cannot end before it is killed
    if b"part.committed" in line and b'"part": 20,' in line:
        os.killpg(run.pid, signal.SIGKILL)
        print("kill -9 after part 20")
        break
sys.exit(run.wait() != -signal.SIGKILL)
END
on jetson-2 apply -q @digits 2> said/jetson-2
committed=$(tail -q -n +2 roots/jetson-2/outbox/digits/part-*.csv)
must "$(echo "$committed" | wc -l | tr -d ' ') $(echo "$committed" | cut -d, -f1,2 | sort -u | wc -l | tr -d ' ')" "7560 7560"
echo "after the next apply: 7,560 rows in the inbox, 7,560 rows committed, none of them twice"

step "gate-1 goes back to the version before"
on gate-1 rollback @digits 2> said/rollback
on gate-1 apply -q @digits 2> said/gate-1

step "What the fleet says of itself"
fleet_says "1 x current, commit 1, 360 rows
9 x current, commit 4, 360 rows
1 x current, commit 4, 7,560 rows
1 x refused, commit 1, 360 rows"
must "$(ortdeploy fleet collected --expect 'devices/*.yaml' --wanted "$(sed -n 's/^id //p' said/bundle-4)" > said/fleet || echo wrong)" wrong
cat said/fleet
