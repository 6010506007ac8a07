"""A service that was started with nohup survives a hang-up, and stops on request."""

import signal
from pathlib import Path

from tests.integration.commands import APP, post, serve, started


def test_a_hang_up_does_not_stop_a_service_that_was_started_with_nohup(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP.format(arguments=""))
    with started(*serve("app.py", "--dev"), cwd=tmp_path, launcher=["nohup"]) as service:
        service.process.send_signal(signal.SIGHUP)
        for number in range(3):
            assert post(service.address, f"evt_{number}").status_code == 202
        assert service.process.poll() is None
        assert service.stop(signal.SIGTERM) == 0
