# Sourced by the scripts beside it. `python` is the one to run: $PYTHON, else .venv's, else python3; it must have the
# libraries of research/gpu/wheels.txt. The checkout's own sources go before an installed loadstone.

root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd -P)
python=${PYTHON-}
if [[ -z $python ]]; then
    python=python3
    if [[ -x $root/.venv/bin/python ]]; then python=$root/.venv/bin/python; fi
fi
export PYTHONPATH=$root/src:$root/research/gpu${PYTHONPATH:+:$PYTHONPATH}

# Tags of wheels for the machine there: pip takes each by itself, so that all older ones that wheels carry are named too.
platforms=()
for tag in 2_39 2_35 2_34 2_31 2_28 2_27 2_26 2_24 2_17 2_12 2_5; do platforms+=(--platform "manylinux_${tag}_x86_64"); done
for tag in 2014 1; do platforms+=(--platform "manylinux${tag}_x86_64"); done
