"""The monitor inside of training frameworks: ``lightning`` and ``transformers``.

Each module needs its framework, and is imported by name::

    from curvescope.integrations.lightning import CurvatureMonitor
    from curvescope.integrations.transformers import CurvatureCallback
"""
