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


for _name, _converter in {
    "row": RowId,
    "job": JobId,
    "project": ProjectName,
    "username": Username,
    "file": FileName,
}.items():
    register_converter(_converter, _name)
