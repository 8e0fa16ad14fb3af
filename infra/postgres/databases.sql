-- One database for each server; the image runs this once, on an empty volume.
CREATE DATABASE mlflow;
CREATE DATABASE mlflow_auth;
CREATE DATABASE prefect;
