"""Launcher of the whole platform on one machine; see README.md in this folder."""

from launch.errors import LaunchError
from launch.running import Platform, RunningProcess
from launch.settings import PlatformSettings

__all__ = ["LaunchError", "Platform", "PlatformSettings", "RunningProcess"]
