"""The front: command line, spec to plan, orchestration with Ray, rendering. The only room that prints."""
