"""Transactions that change projects, members, quotas, tokens and idempotency records."""

from projects.services.idempotency import (
    expire_idempotency_records,
    idempotency_claim,
    idempotency_finish,
    idempotency_release,
)
from projects.services.invitations import (
    invitation_accept,
    invitation_create,
    invitation_decline,
    invitation_withdraw,
)
from projects.services.members import (
    member_add,
    member_change_role,
    member_remove,
    project_create,
    project_update,
    quota_update,
    user_quota_update,
)
from projects.services.openness import project_archive, project_delete, project_restore
from projects.services.tokens import log_in, token_issue, token_revoke, token_rotate
from projects.services.users import password_reset, user_create, user_update

__all__ = [
    "expire_idempotency_records",
    "idempotency_claim",
    "idempotency_finish",
    "idempotency_release",
    "invitation_accept",
    "invitation_create",
    "invitation_decline",
    "invitation_withdraw",
    "log_in",
    "member_add",
    "member_change_role",
    "member_remove",
    "password_reset",
    "project_archive",
    "project_create",
    "project_delete",
    "project_restore",
    "project_update",
    "quota_update",
    "token_issue",
    "token_revoke",
    "token_rotate",
    "user_create",
    "user_quota_update",
    "user_update",
]
