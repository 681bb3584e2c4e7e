#!/bin/sh
exec python3 ./endpoint.py client
