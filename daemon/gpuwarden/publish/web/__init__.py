import gpuwarden.publish.web.plain_aiohttp  # noqa: F401 - before any module here imports aiohttp
