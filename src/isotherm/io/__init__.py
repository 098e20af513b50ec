"""Arrays and pytrees in files: atomic writes, netCDF, safetensors, Zarr and checksums."""
