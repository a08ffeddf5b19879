"""The words of Fabric Sweep: spec, plan, attempt, metrics, identities, Arrow schemas, errors. No I/O."""
