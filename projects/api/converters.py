"""Path converters: what cannot be an identifier is a 404 before any query."""

from __future__ import annotations

from django.urls import register_converter
from django.urls.converters import IntConverter, StringConverter

from projects.api import path_patterns


class RowId(IntConverter):
    regex = path_patterns.ROW_ID


class JobId(StringConverter):
    regex = path_patterns.JOB_ID


class ProjectName(StringConverter):
    regex = path_patterns.PROJECT_NAME


class Username(StringConverter):
    regex = path_patterns.USERNAME


class FileName(StringConverter):
    regex = path_patterns.FILE_NAME


register_converter(RowId, "row")
register_converter(JobId, "job")
register_converter(ProjectName, "project")
register_converter(Username, "username")
register_converter(FileName, "file")
