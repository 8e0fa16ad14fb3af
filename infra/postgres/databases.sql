-- One database for each server; the image runs this once, on an empty volume. Names and tags hold any letter: UTF8.
CREATE DATABASE mlflow ENCODING 'UTF8' TEMPLATE template0;
CREATE DATABASE mlflow_auth ENCODING 'UTF8' TEMPLATE template0;
CREATE DATABASE prefect ENCODING 'UTF8' TEMPLATE template0;
