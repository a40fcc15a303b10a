# Sourced by the scripts beside it. `python` is the one to run: $PYTHON, else .venv's, else python3; it must have the
# libraries of scripts/gpu/wheels.txt. The checkout's own sources go before an installed loadstone.

root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd -P)
python=${PYTHON-}
if [[ -z $python ]]; then
    python=python3
    if [[ -x $root/.venv/bin/python ]]; then python=$root/.venv/bin/python; fi
fi
export PYTHONPATH=$root/src${PYTHONPATH:+:$PYTHONPATH}
