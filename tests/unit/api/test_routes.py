"""Every file of `api/routes` is served."""

from importlib import import_module
from pkgutil import iter_modules

from inference_store.api import routes
from inference_store.api.app import create_app
from inference_store.index.database import create_engine
from inference_store.objects import Blobs
from inference_store.platform.settings import ApiSettings
from tests.settings import make_settings

_SETTINGS = {
    "postgres_dsn": "postgresql://nobody@127.0.0.1:1/nothing",
    "s3_endpoint": "http://127.0.0.1:1",
    "s3_access_key": "none",
    "s3_secret_key": "none",
    "s3_bucket": "none",
}


def test_the_routes_of_every_file_are_served() -> None:
    settings = make_settings(ApiSettings, **_SETTINGS)
    with Blobs(settings) as blobs:
        app = create_app(settings, create_engine(settings.postgres_dsn.get_secret_value()), blobs)
    served = {id(route) for route in app.router.routes}
    names = [module.name for module in iter_modules(routes.__path__)]
    files = {name: import_module(f"{routes.__name__}.{name}").router.routes for name in names}
    assert len(files) > 20
    assert [
        name for name, own in files.items() if not own or {id(route) for route in own} - served
    ] == [], "add them to the list in api/app.py"
