"""What a real browser permits: our pages under their content security policy, and pages of another port."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from playwright.sync_api import expect

from scheduling.models import Job
from tests import factories
from tests.dashboard.site import Site
from tests.streams.server import StreamServer

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

#: A page that a job might serve on a port of the machine: it tries to use the visitor's session.
HOSTILE_PAGE = """<!doctype html><pre id="found"></pre><script>
const found = {};
const attempts = {
  address: () => fetch("WEB/stream-address/?stream=cluster", { credentials: "include" })
    .then((answer) => answer.text()),
  me: () => fetch("WEB/api/v1/me/", { credentials: "include" })
    .then((answer) => answer.text()),
  cancel: () => fetch("WEB/api/v1/jobs/JOB/cancel/", {
    method: "POST", credentials: "include", mode: "no-cors",
    headers: { "Content-Type": "text/plain" }, body: "{}" }).then(() => Promise.reject("sent blindly")),
  stream: () => new Promise((resolve, reject) => {
    const source = new EventSource("STREAM/stream/cluster", { withCredentials: true });
    source.onopen = () => resolve("open");
    source.onerror = () => { source.close(); reject("refused"); };
  }),
  frame: () => new Promise((resolve, reject) => {
    const frame = document.createElement("iframe");
    frame.src = "WEB/jobs/JOB/";
    frame.onload = () => { try { resolve(frame.contentDocument.body.textContent || Promise.reject("empty")); }
      catch { reject("refused"); } };
    document.body.append(frame);
  }),
};
Promise.all(Object.entries(attempts).map(([name, attempt]) => attempt()
  .then((value) => { found[name] = `got ${value}`; }, (error) => { found[name] = `refused: ${error}`; })))
  .then(() => { document.getElementById("found").textContent = JSON.stringify(found); });
</script>"""

SMALL_DOCUMENT = {
    "openapi": "3.0.3",
    "info": {"title": "Punctual", "version": "1"},
    "paths": {"/jobs/": {"get": {"responses": {"200": {"description": "Jobs."}}}}},
}


@dataclass
class HostileServer:
    """A job's web server, on another port of the same host name."""

    url: str
    page: str = ""
    cookies: list[str] = field(default_factory=list)


@pytest.fixture
def hostile() -> Iterator[HostileServer]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known.cookies.append(self.headers.get("Cookie", ""))
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(known.page.encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    known = HostileServer(f"http://127.0.0.1:{server.server_port}")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield known
    server.shutdown()
    server.server_close()


def test_the_admin_and_the_apis_page_work_under_their_policy(site: Site) -> None:
    admin = factories.UserFactory.create(is_staff=True, is_superuser=True)
    visit = site.visit(admin)
    for path in ("/admin/projects/user/add/", "/admin/projects/project/"):
        page = visit.go(path)
        expect(page.locator("#site-name")).to_be_visible()
    # All operations would take the browser three seconds to draw.
    page.route("**/api/v1/schema/**", lambda route: route.fulfill(json=SMALL_DOCUMENT))
    page = visit.go("/api/v1/docs/")
    expect(page.locator("#swagger-ui .info .title")).to_be_visible()
    expect(page.locator("#swagger-ui .opblock").first).to_be_visible()
    page = visit.go("/no-such-page/")
    expect(page.locator("h1")).to_have_text("Not found")
    # The browser itself reports that a page was not found; no other message is allowed.
    assert [problem for problem in visit.problems if "404" not in problem] == []


def test_a_page_of_another_port_can_use_nothing_of_a_session(
    site: Site, hostile: HostileServer, stream_server: StreamServer
) -> None:
    job = site.scenario.running
    hostile.page = (
        HOSTILE_PAGE.replace("WEB", site.url).replace("STREAM", stream_server.url).replace("JOB", job.id)
    )
    visit = site.visit(site.scenario.owner)
    visit.page.goto(hostile.url)
    found = visit.page.locator("#found")
    expect(found).not_to_be_empty()
    said = found.inner_text()
    assert said.count("refused: ") == 5, said
    assert "got " not in said
    assert Job.objects.get(pk=job.id).state == "running"
    # Browsers do send it the cookie, as docs/threat_model.md says. It opens no stream.
    cookie = next(filter(None, hostile.cookies))
    assert httpx.get(f"{stream_server.url}/stream/cluster", headers={"Cookie": cookie}).status_code == 401


@pytest.mark.usefixtures("without_figures")
def test_logging_out_ends_what_another_tab_follows(site: Site) -> None:
    visit = site.visit(site.scenario.owner)
    page = visit.go("/")
    expect(page.locator("#live")).to_have_attribute("data-state", "live")
    other = page.context.new_page()
    other.goto(f"{site.url}/jobs/")
    other.get_by_role("button", name="Log out").click()
    expect(other.get_by_label("User name")).to_be_visible()
    # The stream ends, and asking for another ticket leads to the login page.
    expect(page.get_by_label("User name")).to_be_visible()
