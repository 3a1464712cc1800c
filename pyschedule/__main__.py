"""`python -m pyschedule`."""

from pyschedule.cli import main

raise SystemExit(main())
